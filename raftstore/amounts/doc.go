// Package amounts has the tests of the store that are about how much it holds and how long it
// waits. The first move megabytes: the largest transactions, memory during a restore, the size of
// the log's file, a disk that is full of the store's own data. In the others many minutes pass, in
// virtual time, until the leader drops a server or a part of history.
//
// The race detector finds nothing in them that shorter tests do not show it, and makes them take
// minutes. So `make test` runs them without it; `make test-all` runs them with it.
package amounts
