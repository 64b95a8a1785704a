"""The generated pages: each a study that measures into tables and is drawn from them alone."""

from dapolab.studies.bandit_pages import CLIP, DYNAMIC_SAMPLING, LENGTH_BIAS, OVERLONG
from dapolab.studies.collectors import COLLECTORS
from dapolab.studies.index import index_document
from dapolab.studies.study import Stored, Study, Tables, read, save
from dapolab.studies.sweeps import SWEEPS

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (COLLECTORS, LENGTH_BIAS, CLIP, OVERLONG, DYNAMIC_SAMPLING, SWEEPS)
}

__all__ = ["STUDIES", "Stored", "Study", "Tables", "index_document", "read", "save"]
