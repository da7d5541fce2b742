package datakeys

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/barque/barque/internal/scope"
)

// Status is how far the encryption is, without the keys.
type Status struct {
	Generation uint64         `json:"generation"`
	Step       Step           `json:"step"` // empty at rest
	Text       string         `json:"text"` // the step in words
	Began      time.Time      `json:"began,omitzero"`
	Enabled    bool           `json:"enabled"`
	Resources  []string       `json:"resources"`
	Keys       []KeyStatus    `json:"keys"`
	Except     []string       `json:"except,omitempty"` // of the wildcards in Resources
	Clear      int            `json:"clear"`            // objects of the resources that are in clear
	Other      int            `json:"other,omitempty"`  // objects that would be written in another way now
	Servers    []ServerStatus `json:"servers"`
	Waiting    []string       `json:"waiting,omitempty"`
	// File is that of the server that answers; nil: there is none on any server.
	File *FileStatus `json:"file,omitempty"`
	// Problem is why the server that answers does not follow or cannot read.
	Problem string `json:"problem,omitempty"`
}

// FileStatus is that of a file of providers, which encrypt resources in place of the keys.
type FileStatus struct {
	Path      string            `json:"path"`
	Hash      string            `json:"hash,omitempty"`
	Problem   string            `json:"problem,omitempty"`
	Resources map[string]string `json:"resources"` // and the providers that write them
	// Used is the hash of the file that is in use; empty: none is.
	Used string `json:"used,omitempty"`
	// Writes is true while this server's file is in use. The key of the cluster writes otherwise.
	Writes bool     `json:"writes"`
	Differ []string `json:"differ,omitempty"` // living servers with another file, or without one
	Away   []string `json:"away,omitempty"`   // servers that do not run
	// Apart is why the leader does not take the file of the servers into use, if it answers.
	Apart string `json:"apart,omitempty"`
}

// KeyStatus is one key. That of a provider of a file has the label of its values as the ID, and its
// Made is zero.
type KeyStatus struct {
	ID      string    `json:"id"`
	Writes  bool      `json:"writes"` // it encrypts; all keys are read
	Made    time.Time `json:"made"`
	Objects int       `json:"objects"` // under it
	CA      string    `json:"ca"`      // whose key seals it
}

// ServerStatus is one server.
type ServerStatus struct {
	Name  string `json:"name"`
	State string `json:"state"`
	// Generation is the one that it has taken over; 0: it is of an earlier version, or away.
	Generation uint64 `json:"generation"`
	Alive      bool   `json:"alive"`
	// Problem is why it has not taken over the newest state, if it says so.
	Problem string `json:"problem,omitempty"`
	// Cleaned reports whether its disk has no values from before the last change that came to the
	// step Clean. A server that is away keeps its values.
	Cleaned bool `json:"cleaned"`
}

// Progress is a server's view of a change of the keys, for the status of the cluster.
type Progress struct {
	Step  Step      `json:"step,omitempty"` // empty at rest
	Began time.Time `json:"began,omitzero"`
	// Waiting are the servers and the work that the change waits for. The leader knows its work.
	Waiting []string `json:"waiting,omitempty"`
	// Problem is why the server does not follow, or cannot read all objects, or does not take the
	// file of providers of all servers into use as the leader.
	Problem string `json:"problem,omitempty"`
}

// Progress returns this server's view, without a look at the objects or at other servers.
func (m *Manager) Progress(ctx context.Context) Progress {
	p := Progress{Problem: m.Problem(ctx)}
	if d, _, _ := m.Seen(); d.Step != AtRest {
		p.Step, p.Began, p.Waiting = d.Step, d.Began, m.kind.Waiting(d)
	} else if p.Problem == "" {
		p.Problem = m.kind.whyApart()
	}
	return p
}

// Covers reports whether all objects of a resource are encrypted, by the keys or by a file. While a
// change is under way that is not known: some may be in clear, also on the disks of servers.
func (s *Status) Covers(resource string) (bool, error) {
	if s.Step != AtRest {
		return false, fmt.Errorf("a change of the data keys is under way (%s): try again when it is at rest", s.Text)
	}
	if !s.Enabled || !(scope.Scope{Names: s.Resources, Except: s.Except}).Has(resource) {
		return false, nil
	}
	return s.Clear == 0, nil
}

// identity is the provider of a file that leaves a resource to the keys.
const identity = "identity"

// Writer returns the provider that the file names for a resource; empty: the keys encrypt it.
func (f *FileStatus) Writer(resource string) string {
	if f == nil {
		return ""
	}
	for _, as := range scope.Nearest(resource) {
		if by := f.Resources[as]; by != "" {
			if by == identity {
				by = ""
			}
			return by
		}
	}
	return ""
}

func (f *FileStatus) encrypts(resource string) bool { return f.Writer(resource) != "" }

// Problem returns why this server does not follow, or cannot read all objects; empty: it does.
func (m *Manager) Problem(ctx context.Context) string {
	if err := m.kind.Keys.Ready(ctx); err != nil {
		return err.Error()
	}
	_, _, problem := m.Seen()
	return problem
}

// Status reads how far the encryption is.
func (m *Manager) Status(ctx context.Context) (Status, error) {
	d, _, _, err := m.kind.Keys.look(ctx, true)
	if err != nil {
		return Status{}, err
	}
	s := Status{Generation: max(d.Generation, First), Step: d.Step, Text: d.Step.Text(), Enabled: d.Writes != "",
		Resources: d.Resources, Except: d.Except, Problem: m.Problem(ctx)}
	if d.Step != AtRest {
		s.Began = d.Began
		s.Waiting = m.kind.Waiting(d)
	}
	s.File = m.kind.fileStatus(d)
	counts, err := m.kind.count(ctx, d)
	if err != nil {
		return s, err
	}
	n := counts.Under
	s.Clear, s.Other = counts.Clear, counts.Other
	for _, k := range d.Keys {
		s.Keys = append(s.Keys, KeyStatus{ID: k.ID, Writes: k.ID == d.Writes, Made: k.Made, Objects: n[k.ID], CA: k.CA})
		delete(n, k.ID)
	}
	for _, label := range d.Labels {
		s.Keys = append(s.Keys, KeyStatus{ID: label, Writes: true, Objects: n[label]})
		delete(n, label)
	}
	for _, id := range slices.Sorted(maps.Keys(n)) { // of a provider, or without a known key
		s.Keys = append(s.Keys, KeyStatus{ID: id, Objects: n[id]})
	}
	for _, server := range m.kind.servers() {
		s.Servers = append(s.Servers,
			ServerStatus{Name: server.Name, State: server.State, Generation: server.Generation, Alive: server.Alive,
				Cleaned: server.Generation >= max(d.Cleaned, First)})
	}
	return s, nil
}

// countAgain is how long a count is used during a change: callers that wait for its end ask often.
const countAgain = 5 * time.Second

// counted is the last count of the objects under each key.
type counted struct {
	at time.Time
	is *Counts
}

func (k *kind) count(ctx context.Context, d document) (Counts, error) {
	k.mu.Lock()
	last := k.counted
	k.mu.Unlock()
	if d.Step != AtRest && last.is != nil && k.Now().Sub(last.at) < countAgain {
		is := *last.is
		is.Under = maps.Clone(is.Under)
		return is, nil
	}
	e := d.epoch(0)
	is, err := k.Objects.Count(ctx, &e)
	if err == nil {
		k.mu.Lock()
		k.counted = counted{k.Now(), &Counts{maps.Clone(is.Under), is.Clear, is.Other}}
		k.mu.Unlock()
	}
	return is, err
}
