// Package atomicdir replaces the files of a directory all at once: a reader sees those of one
// version, never of two. Volumes made of API data are such directories, and programs know their
// layout.
package atomicdir
