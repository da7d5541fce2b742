// Package status is what servers tell people, and each other, of themselves: the Status of a
// server, with its Detail where that was asked for, the Board that asks all members for theirs, why
// a server is not ready, and the metrics.
//
// It decides nothing; Board.TellOfNoLeader watches for a missing leader and says so. Package node
// fills a Status in, a Condition, and a Reading of the gauges.
package status
