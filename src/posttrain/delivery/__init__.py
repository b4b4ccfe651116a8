"""Who gets the new model: exports in open formats, and the pointer to the champion."""
