"""The shipped algorithms for graph classification, a file for each family."""

from fkgsec.algorithms.graphs.alone import LOCAL
from fkgsec.algorithms.graphs.cefgl import CEFGL
from fkgsec.algorithms.graphs.fedavg import FEDAVG, FEDGCN, FEDPER
from fkgsec.algorithms.graphs.fedprox import FEDPROX
from fkgsec.algorithms.graphs.fedstar import FEDSTAR
from fkgsec.algorithms.graphs.gcfl import GCFL, GCFL_PLUS, GCFL_PLUS_DWS
from fkgsec.algorithms.graphs.spreadgnn import SPREADGNN
from fkgsec.federation.recipes import register

SHIPPED = (LOCAL, FEDAVG, FEDPER, FEDGCN, FEDPROX, GCFL, GCFL_PLUS, GCFL_PLUS_DWS, FEDSTAR, SPREADGNN, CEFGL)

for _recipe in SHIPPED:
    register(_recipe)

__all__ = ["SHIPPED"]
