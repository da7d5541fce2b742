// Package sim runs whole clusters of the store in virtual time, under faults drawn from a seed, and
// checks the clients' records with package check.
//
// The servers are real ones, except for their network (package memnet), their disks (disk), and
// their clocks (clock). A run must be inside a testing/synctest bubble.
//
// A seed decides the size of the cluster, whether servers are exchanged, every fault with its time
// and place, the delays of the network, the speed of disks, clocks and timers, and each client's
// requests. It does not decide the order in which the scheduler runs goroutines at one moment of
// virtual time, Raft's random timeouts, and the IDs of servers and requests. So a seed that finds a
// fault finds it often, and not always.
//
// It is for tests only.
package sim
