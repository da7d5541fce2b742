// Package page has the tests of the page at /ui in a browser, against an API that they make up.
// TestPage of the package clustertest has it against a cluster.
package page
