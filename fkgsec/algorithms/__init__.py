"""The shipped algorithms, a file for each family: recipe, settings, and the parts that no other family has."""

from fkgsec.algorithms.alone import COLLECTIVE, SINGLE
from fkgsec.algorithms.fede import FEDE, FEDEP
from fkgsec.algorithms.fede_kd import FEDE_KD
from fkgsec.algorithms.fede_svd import FEDE_SVD, FEDE_SVD_PLUS
from fkgsec.algorithms.fedec import FEDEC
from fkgsec.algorithms.fedlu import FEDLU
from fkgsec.algorithms.fedprox import FEDPROX
from fkgsec.algorithms.fedr import FEDR
from fkgsec.algorithms.feds import FEDEPL, FEDS
from fkgsec.algorithms.pfedeg import PFEDEG
from fkgsec.federation.recipes import register

SHIPPED = (
    SINGLE,
    COLLECTIVE,
    FEDE,
    FEDEP,
    FEDEPL,
    FEDPROX,
    FEDEC,
    FEDR,
    FEDS,
    FEDLU,
    PFEDEG,
    FEDE_KD,
    FEDE_SVD,
    FEDE_SVD_PLUS,
)

for _recipe in SHIPPED:
    register(_recipe)

__all__ = ["SHIPPED"]
