// Package plugintest is for the tests of the scheduler's plugins: a cluster in memory that a
// profile of some plugins decides about, and the makers of its nodes and pods.
package plugintest
