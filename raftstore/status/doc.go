// Package status has the reports of servers about themselves, for people and for each other. It has
// the Status of a server with an optional Detail, the Board that asks all members for theirs, the
// reasons why a server is not ready, and the metrics.
//
// It takes no decision; Board.TellOfNoLeader logs a missing leader. Package node fills in a Status,
// a Condition, and a Reading of the gauges.
package status
