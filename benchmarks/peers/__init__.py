"""fkgsec beside other libraries, in one process and on one machine."""
