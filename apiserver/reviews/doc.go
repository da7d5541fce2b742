// Package reviews answers the questions that are asked by creating an object: who a token belongs
// to, who I am, and whether somebody may do something. Nothing of it is stored.
package reviews
