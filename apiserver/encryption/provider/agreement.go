package provider

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// agreement is whether the servers have the same file, or none.
type agreement struct {
	at     time.Time
	file   bool     // a server has one
	differ []string // living servers with another file, and those whose file is not known yet
	away   []string // servers that are off, and had another file at last, or an unknown one
	keys   []string // living servers with this file whose plugins report other keys
	early  bool     // some servers were not met yet, and may be soon
	all    bool     // all servers have the same one, and none is off
	writes bool     // all servers read what this file writes
}

// lookAgain is how long an agreement counts: each write asks for it.
const lookAgain = time.Second

func (p *Providers) agreement() *agreement {
	now := p.cfg.Now()
	if last := p.seen.Load(); last != nil && now.Sub(last.at) < lookAgain {
		return last
	}
	is := p.compare(now)
	p.seen.Store(is)
	return is
}

// compare looks at the other servers. A server that is off counts by its last file: a server that
// is being restarted to get the file is off for a moment, and may come back without it.
func (p *Providers) compare(now time.Time) *agreement {
	own := p.Digest()
	others, known := p.cfg.Others()
	if !known {
		return &agreement{at: now, file: own != 0, differ: []string{"the other servers (not known yet)"}, early: true}
	}
	p.knows.CompareAndSwap(nil, &now)
	is := &agreement{at: now, file: own != 0, all: true, early: now.Sub(*p.knows.Load()) <= unmetFor}
	unmet := false
	for _, o := range others {
		is.file = is.file || o.File != 0
		is.all = is.all && o.Alive && o.File == own
		name := o.Name
		if o.File == 0 && !o.Unmet {
			name += " (without a file)"
		}
		switch {
		case o.Unmet && !o.Alive:
			unmet = true
		case o.Alive && o.File != own:
			is.differ = append(is.differ, name)
		case o.File != own:
			is.away = append(is.away, name+", which is off")
		case o.Alive && o.Keys != 0 && p.Keys() != 0 && o.Keys != p.Keys():
			is.keys = append(is.keys, o.Name)
		}
	}
	is.early = is.early && unmet
	for _, o := range others {
		if !is.file || !o.Unmet || o.Alive {
			continue
		}
		if is.early {
			is.differ = append(is.differ, o.Name+" (not met yet)")
		} else {
			is.away = append(is.away, o.Name+", which is off (its file is not known)")
		}
	}
	slices.Sort(is.differ)
	slices.Sort(is.away)
	is.writes = len(is.differ)+len(is.away) == 0
	return is
}

// Writes implements encryption.Outside.
func (p *Providers) Writes() bool { return p.agreement().writes }

// Anywhere reports whether a server has a file, or may have one.
func (p *Providers) Anywhere() bool {
	is := p.agreement()
	return is.file || is.early
}

// Encrypts reports whether a server is known to have a file.
func (p *Providers) Encrypts() bool { return p.agreement().file }

// differs returns the error for living servers that do not have this server's file.
func (p *Providers) differs(is *agreement) error {
	if len(is.differ) == 0 || !is.file {
		return nil
	}
	of := "this server has none"
	if p.options.File != "" {
		of = "this server has " + p.options.File
	}
	return fmt.Errorf("the file of %s differs between servers, so that one could not read what another writes: %s, %s: give all servers the same file first", fileFlag, of, strings.Join(is.differ, ", "))
}

// Refuses returns why the data keys cannot be changed now, or nil. inClear is set for a change that
// writes all objects in clear.
func (p *Providers) Refuses(inClear bool) error {
	if err := p.differs(p.agreement()); err != nil || !inClear {
		return err
	}
	for _, name := range slices.Sorted(maps.Values(p.Resources())) {
		if name != identity {
			return fmt.Errorf("the provider %s of %s %s would go on to encrypt: put the provider identity first in the file on all servers, and begin with `barque secrets-encrypt rewrite`", name, fileFlag, p.options.File)
		}
	}
	return nil
}

// Settled returns why the leader must not rewrite objects now, or nil. A leader that lacks the file
// of the others would write in clear what their file encrypts; and one whose plugin has another key
// than theirs would be done while they still write under the former key.
func (p *Providers) Settled() error {
	is := p.agreement()
	switch err := p.differs(is); {
	case err != nil:
		return err
	case is.early:
		return errors.New("this server has not met all other servers yet, and does not know their files of " + fileFlag)
	case len(is.keys) > 0:
		return fmt.Errorf("the plugins of %s report other keys on these servers than on this one: %s; give all plugins the same key", fileFlag, strings.Join(is.keys, ", "))
	}
	return nil
}
