// Package reviews serves the questions that are asked by creating an object: the user of a token,
// one's own identity, and whether a user may do something. Nothing of it is stored.
package reviews
