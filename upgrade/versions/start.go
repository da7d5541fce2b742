package versions

import (
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Self is the program that starts.
type Self struct {
	Path    string
	Version string
	// Installed is set if the program is in no folder of versions, and Same if it is the installed
	// program of the record.
	Installed, Same bool
}

// Do is a step of a start.
type Do int

// Steps.
const (
	Run   Do = iota // this program is the node
	Exec            // another program gets the process
	Watch           // another program is started on trial, and watched
)

// Step is the next step of a start, and the change of the record before it.
type Step struct {
	Do   Do
	Path string // of the other program
	// Version of the other program; empty for the installed one.
	Version string
	// Note is for the log.
	Note string
	// Next is the record that is to be written first; nil is no change.
	Next *Record
}

// next decides a start by the record.
func (d Dir) next(r *Record, self Self, now time.Time) Step {
	if r == nil {
		return Step{}
	}
	if self.Installed && !self.Same && r.Installed != nil {
		kept := *r
		kept.Installed, kept.Current, kept.Before, kept.Trial = nil, "", "", nil
		return Step{Next: &kept, Note: fmt.Sprintf("the installed program %s is another one than at the last upgrade, "+
			"and counts from now on: version %s", self.Path, self.Version)}
	}
	if t := r.Trial; t != nil {
		changed, trial := *r, *t
		if t.Starts >= mostStarts {
			changed.Trial = nil
			changed.Failed = &Failure{Version: t.Version, At: now,
				Why: fmt.Sprintf("it was started %d times and not confirmed: the machine or the process that watches it was stopped each time", t.Starts)}
			step := d.next(&changed, self, now)
			step.Next, step.Note = &changed, fmt.Sprintf("version %s is taken back: %s", t.Version, changed.Failed.Why)
			return step
		}
		trial.Starts++
		changed.Trial = &trial
		return Step{Do: Watch, Path: d.Program(t.Version), Version: t.Version, Next: &changed,
			Note: fmt.Sprintf("version %s is on trial, start %d", t.Version, trial.Starts)}
	}
	switch {
	case r.Current == "" && (self.Installed || r.Installed == nil):
		return Step{}
	case r.Current == "":
		return Step{Do: Exec, Path: r.Installed.Path}
	case self.Path == d.Program(r.Current):
		return Step{}
	}
	return Step{Do: Exec, Path: d.Program(r.Current), Version: r.Current}
}

// selfOf describes the program that runs.
func (d Dir) selfOf(path string, r *Record) (Self, error) {
	self := Self{Path: path, Version: own, Installed: !d.holds(path)}
	if !self.Installed || r == nil || r.Installed == nil {
		return self, nil
	}
	same, err := r.Installed.is(path)
	self.Same = same
	return self, err
}

// holds reports whether a program is one of the folder's. Its path has no symbolic links; that of
// the folder may have some.
func (d Dir) holds(program string) bool {
	folder, err := os.Stat(string(d))
	if err != nil {
		return false
	}
	of, err := os.Stat(filepath.Dir(filepath.Dir(program)))
	return err == nil && os.SameFile(of, folder)
}
