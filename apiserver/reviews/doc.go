// Package reviews serves the reviews that are answered at their creation: the user of a token,
// one's own identity, and whether a user may do something. None of them is stored.
package reviews
