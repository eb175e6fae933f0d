"""A prepared folder to rows: pairs, masks, packing, streams, the loader."""
