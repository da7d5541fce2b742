// Package versions keeps the programs of a node in its data directory, and starts the one that
// counts.
//
// The unit of a node starts the installed program, such as /usr/bin/barque. That file is never
// written by Barque: a package or an operator owns it. An upgrade puts a program beside it, as
// DATA-DIR/versions/VERSION/barque. At its start the installed program reads the record in that
// folder, and gives its process to the program that counts (Launch).
//
// A program that has not proven itself is on trial. The program before it stays as its parent, with
// the process that the unit knows, and watches it: a program that ends before it is confirmed, or
// is not ready or not confirmed in time, is taken back, and the program before it goes on in the
// same process. So a broken program needs no help from itself, from systemd, or from the cluster.
//
//	          Try                       ready, then Confirm
//	current ───────▶ current + trial ───────────────────────▶ the trial is current
//	   ▲                   │
//	   └───────────────────┘ ended, late, started too often, TakeBack: the failure is kept
//
// The record is written before each step, so a power loss at any moment leaves a program to start.
// A new file in the place of the installed program ends all that: it is the operator's last word.
package versions
