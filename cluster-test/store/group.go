package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/barque/barque/cluster-test/store/member"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore/transport"
)

// Config of a Group.
type Config struct {
	// Size is how many members it starts with.
	Size int
	// Dir is where the directory of the group is made. Default: os.TempDir().
	Dir string
	// Links puts relays between the members, for Shut and Delay.
	Links bool
	// DiskMegabytes gives each member an ext4 file system of its own, of that size, for Fill and
	// CutPower; see DisksPossible. 0: a directory.
	DiskMegabytes int
	// Grace is the time that the answer to an operation may take beyond the operation's time-out.
	// Default: 5 s.
	Grace   time.Duration
	Options member.Options
}

// Group is a driver's view of the members. Its methods may be called from several goroutines; those
// that start and stop the same member may not.
type Group struct {
	cfg       Config
	dir       *groupDir
	net       addresses
	authority *pki.Authority
	keeper    *keeper
	links     *links // nil without relays

	mu      sync.Mutex
	members []*Member
}

// clusterID of all groups: they have a CA each, so they cannot be mixed up.
const clusterID = "store"

// maxMembers that a group ever had, with those that were removed.
const maxMembers = 250

// NewGroup starts the members, the first of which makes the cluster and the others join, and waits
// until all of them vote.
func NewGroup(ctx context.Context, cfg Config) (*Group, error) {
	if cfg.Grace <= 0 {
		cfg.Grace = statusTimeout
	}
	g := &Group{cfg: cfg}
	if err := g.start(ctx); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *Group) start(ctx context.Context) (err error) {
	if g.dir, err = newGroupDir(g.cfg.Dir); err != nil {
		return err
	}
	if g.net, err = reserveAddresses(); err != nil {
		return err
	}
	if g.keeper, err = newKeeper(g.cfg.DiskMegabytes > 0, g.dir.path); err != nil {
		return err
	}
	if g.authority, err = pki.NewAuthority(clusterID, time.Now()); err != nil {
		return err
	}
	if g.cfg.Links {
		g.links = newLinks()
	}
	for range g.cfg.Size {
		m, err := g.Add()
		if err != nil {
			return err
		}
		if err := m.Start(ctx); err != nil {
			return err
		}
		if m.Index > 0 {
			if err := m.Join(ctx); err != nil {
				return err
			}
		}
	}
	return g.AwaitVoters(ctx, g.Members()...)
}

// Path is the group's directory. It is removed by Close.
func (g *Group) Path() string { return g.dir.path }

// Members returns all members that the group ever had, by Index.
func (g *Group) Members() []*Member {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]*Member(nil), g.members...)
}

// Add makes one more member, with an empty directory, which is not started. The first one that the
// group has makes the cluster; all others must Join.
func (g *Group) Add() (*Member, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &Member{group: g, Index: len(g.members), Name: fmt.Sprintf("s%d", len(g.members))}
	if m.Index >= maxMembers {
		return nil, fmt.Errorf("a group has %d members at most", maxMembers)
	}
	m.Address = g.net.member(m.Index)
	m.dir = filepath.Join(g.dir.path, m.Name)
	if err := os.Mkdir(m.dir, 0o700); err != nil {
		return nil, err
	}
	if err := m.certify(g.authority); err != nil {
		return nil, err
	}
	if g.cfg.DiskMegabytes > 0 {
		err := g.keeper.do(func() (err error) {
			m.disk, err = newDisk(m.dir, g.cfg.DiskMegabytes)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if g.links != nil {
		for _, other := range g.members {
			g.links.add(other.Index, m.Index, member.ViaRelay(m.Address, relayOctet(other.Index)), m.Address)
			g.links.add(m.Index, other.Index, member.ViaRelay(other.Address, relayOctet(m.Index)), other.Address)
			if other.Running() {
				if err := g.links.up(other.Index); err != nil {
					return nil, err
				}
			}
		}
	}
	g.members = append(g.members, m)
	return m, nil
}

func (m *Member) certify(a *pki.Authority) error {
	key, err := pki.GenerateKey()
	if err != nil {
		return err
	}
	m.ca = a.PEM()
	if m.key, err = pki.MarshalKey(key); err != nil {
		return err
	}
	m.certificate, err = a.Issue(pki.Request{
		CommonName: m.Name, Organization: []string{transport.ServerOrganization}, Usage: pki.Client | pki.Server,
	}, key.Public(), time.Now())
	return err
}

// Shut stops everything that flows from one member to another, until Heal.
func (g *Group) Shut(from, to *Member) { g.links.set(from.Index, to.Index, true, 0) }

// Delay makes everything that flows from one member to another late by d, until Heal.
func (g *Group) Delay(from, to *Member, d time.Duration) {
	g.links.set(from.Index, to.Index, false, d)
}

// Heal opens all links.
func (g *Group) Heal() { g.links.heal() }

// AwaitLeader waits until a member leads that most members follow.
func (g *Group) AwaitLeader(ctx context.Context) (*Member, error) {
	var leader *Member
	err := poll(ctx, "a leader", func(ctx context.Context) (bool, error) {
		votes, running := make(map[string]int), 0
		byID := make(map[string]*Member)
		for _, m := range g.Members() {
			status, _, err := m.Status(ctx)
			if err != nil {
				continue
			}
			running++
			votes[status.LeaderID]++
			if status.Role == "leader" {
				byID[status.ID] = m
			}
		}
		for id, m := range byID {
			if 2*votes[id] > running {
				leader = m
				return true, nil
			}
		}
		return false, nil
	})
	return leader, err
}

// AwaitVoters waits until the members are the voters of the group, as each of them knows it.
func (g *Group) AwaitVoters(ctx context.Context, members ...*Member) error {
	return poll(ctx, "all members vote", func(ctx context.Context) (bool, error) {
		for _, m := range members {
			_, known, err := m.Status(ctx)
			if err != nil {
				return false, err
			}
			voters := 0
			for _, k := range known {
				if k.Voter {
					voters++
				}
			}
			if voters != len(members) {
				return false, nil
			}
		}
		return true, nil
	})
}

// pollEvery is how often the driver looks whether something has come about that nothing announces.
const pollEvery = 10 * time.Millisecond

// poll waits for a condition. Its error has the last one of holds.
func poll(ctx context.Context, what string, holds func(ctx context.Context) (bool, error)) error {
	for {
		ok, err := holds(ctx)
		if ok {
			return nil
		}
		select {
		case <-time.After(pollEvery): // brief: the interval of a poll
		case <-ctx.Done():
			if err == nil {
				err = context.Cause(ctx)
			}
			return fmt.Errorf("waiting until %s: %w", what, err)
		}
	}
}

// Keep moves the group's directory, with data and logs, to where Close does not remove it, and
// returns the new path. The members must not run.
func (g *Group) Keep() (string, error) {
	if err := g.stop(); err != nil {
		return "", err
	}
	defer func() { g.dir = nil }()
	return g.dir.keep()
}

// stop kills all members and unmounts their disks.
func (g *Group) stop() error {
	var errs []error
	for _, m := range g.Members() {
		m.Kill()
		if m.disk != nil {
			if err := g.keeper.do(m.disk.Detach); err != nil {
				errs = append(errs, fmt.Errorf("unmount the disk of %s: %w", m.Name, err))
			}
			m.disk = nil
		}
	}
	return errors.Join(errs...)
}

// Close kills all members and removes everything that the group has made. It may be called again.
func (g *Group) Close() error {
	err := g.stop()
	if g.links != nil {
		g.links.close()
		g.links = nil
	}
	if g.keeper != nil {
		g.keeper.stop()
		g.keeper = nil
	}
	if g.net.held != nil {
		g.net.held.Close()
		g.net.held = nil
	}
	if g.dir != nil {
		err = errors.Join(err, g.dir.remove())
		g.dir = nil
	}
	return err
}

// addresses are the group's: 127.N.0.x for its members, the same port for all, and 127.N.a.x for
// the relay by which member a dials member x. 127.N.0.1 is held for as long as the group lives.
type addresses struct {
	network byte
	port    int
	held    net.Listener
}

const firstMember = 2 // last octet of the first member's address

func reserveAddresses() (addresses, error) {
	var err error
	for range 50 {
		a := addresses{network: byte(64 + rand.IntN(180)), port: 20000 + rand.IntN(10000)}
		if a.held, err = net.Listen("tcp", a.at(1)); err == nil {
			return a, nil
		}
	}
	return addresses{}, fmt.Errorf("find free addresses on the loopback interface: %w", err)
}

func (a addresses) at(last int) string { return fmt.Sprintf("127.%d.0.%d:%d", a.network, last, a.port) }

func (a addresses) member(index int) string { return a.at(firstMember + index) }

func relayOctet(index int) int { return index + 1 }
