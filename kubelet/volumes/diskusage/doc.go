// Package diskusage measures how much of a disk the files of a volume use.
package diskusage
