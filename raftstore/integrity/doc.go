// Package integrity keeps a wrong state from being served. The leader compares the states of all
// members (compare.go). A server whose state is not that of most voters is in quarantine: it serves
// nothing, gives its state to no server, and leads only to hand leadership over (guard.go). It gets
// a right state from the leader and takes it at the next start (statetransfer.go).
//
// A Guard never changes a log: logs are right, and they hold what a server has promised.
package integrity
