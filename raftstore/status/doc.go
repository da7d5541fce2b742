// Package status is what servers tell people, and each other, of themselves: the Status of a
// server, with its Detail where that was asked for, the Board that asks all members for theirs, and
// the metrics.
//
// It decides nothing. Package node fills a Status in, and a Reading of the gauges.
package status
