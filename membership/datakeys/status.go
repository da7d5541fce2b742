package datakeys

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
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
	Clear      int            `json:"clear"` // objects of the resources that are in clear
	Servers    []ServerStatus `json:"servers"`
	Waiting    []string       `json:"waiting,omitempty"`
	// Problem is why the server that answers does not follow or cannot read.
	Problem string `json:"problem,omitempty"`
}

// KeyStatus is one key.
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
	// step Clean. A server that is away has what it had.
	Cleaned bool `json:"cleaned"`
}

// Progress is a server's view of a change of the keys, for the status of the cluster.
type Progress struct {
	Step  Step      `json:"step,omitempty"` // empty at rest
	Began time.Time `json:"began,omitzero"`
	// Waiting are the servers and the work that the change waits for. The leader knows its work.
	Waiting []string `json:"waiting,omitempty"`
	// Problem is why the server does not follow, or cannot read all objects.
	Problem string `json:"problem,omitempty"`
}

// Progress returns this server's view, without a look at the objects or at other servers.
func (m *Manager) Progress(ctx context.Context) Progress {
	p := Progress{Problem: m.Problem(ctx)}
	if d, _, _ := m.Seen(); d.Step != AtRest {
		p.Step, p.Began, p.Waiting = d.Step, d.Began, m.kind.Waiting(d)
	}
	return p
}

// Covers reports whether all objects of a resource are encrypted. While a change is under way that
// is not known: some may be in clear, also on the disks of servers.
func (s *Status) Covers(resource string) (bool, error) {
	switch {
	case s.Step != AtRest:
		return false, fmt.Errorf("a change of the data keys is under way (%s): try again when it is at rest", s.Text)
	case !s.Enabled || !slices.Contains(s.Resources, resource):
		return false, nil
	}
	return s.Clear == 0, nil
}

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
	s := Status{Generation: max(d.Generation, First), Step: d.Step, Text: d.Step.Text(), Enabled: d.Writes != "", Resources: d.Resources, Problem: m.Problem(ctx)}
	if d.Step != AtRest {
		s.Began = d.Began
		s.Waiting = m.kind.Waiting(d)
	}
	n, err := m.kind.count(ctx, d)
	if err != nil {
		return s, err
	}
	s.Clear = n[""]
	for _, k := range d.Keys {
		s.Keys = append(s.Keys, KeyStatus{ID: k.ID, Writes: k.ID == d.Writes, Made: k.Made, Objects: n[k.ID], CA: k.CA})
		delete(n, k.ID)
	}
	delete(n, "")
	for id, objects := range n { // of which nobody has the key
		s.Keys = append(s.Keys, KeyStatus{ID: id, Objects: objects})
	}
	for _, server := range m.kind.servers() {
		s.Servers = append(s.Servers, ServerStatus{Name: server.Name, State: server.State, Generation: server.Generation, Alive: server.Alive,
			Cleaned: server.Generation >= max(d.Cleaned, First)})
	}
	return s, nil
}

// countAgain is how long a count is used during a change: whoever waits for its end asks often.
const countAgain = 5 * time.Second

// counted is the last count of the objects under each key.
type counted struct {
	at      time.Time
	objects map[string]int
}

func (k *kind) count(ctx context.Context, d document) (map[string]int, error) {
	k.mu.Lock()
	last := k.counted
	k.mu.Unlock()
	if d.Step != AtRest && last.objects != nil && k.Now().Sub(last.at) < countAgain {
		return maps.Clone(last.objects), nil
	}
	objects, err := k.Objects.Count(ctx, d.Resources)
	if err == nil {
		k.mu.Lock()
		k.counted = counted{k.Now(), maps.Clone(objects)}
		k.mu.Unlock()
	}
	return objects, err
}
