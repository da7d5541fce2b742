// Package amounts has the tests of the store that are about how much it holds: the largest transactions, memory during a
// restore, the size of the log's file, a disk that is full of the store's own data. They move megabytes through a server
// or three, and hardly anything of that happens at the same time. So `make test` runs them without the race detector, under
// which they would take minutes; `make test-all` runs them with it.
package amounts
