// Package peer is how servers reach each other: the kinds of calls between them, and what answers
// mean.
package peer
