// Package clustertest runs real clusters for the end-to-end tests and drives them as people do:
// through the barque binary and kubectl, from outside.
//
// It owns the harness: making a dev cluster with names of its own, commands with deadlines, waiting
// for conditions, reporting the state of a cluster whose test fails, and proving that nothing is
// left when a cluster has been removed. It builds nothing: the binary is $BARQUE_BIN or bin/barque.
//
// Most tests share one cluster of three servers and work in namespaces of their own; those that
// break nodes put them right again. A cluster is removed at the end whatever happens to the tests:
// a reaper process outlives them (see reaper.go).
//
// It is not for tests of a single room: those are beside the room's code and need no cluster.
package clustertest
