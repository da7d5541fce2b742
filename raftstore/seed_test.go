package raftstore_test

import "flag"

// Random tests draw from a seed. Package sim has the simulation of all faults.
var (
	seed  = flag.Uint64("seed", 0, "seed of the tests that draw faults; 0 draws one")
	seeds = flag.Uint64("seeds", 2, "how many seeds the simulation of comparisons takes; one in a short run")
)
