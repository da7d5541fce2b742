package part

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/upgrade/release"
	"github.com/barque/barque/upgrade/versions"
)

// Config of a Node.
type Config struct {
	Name    string
	DataDir string
	// Keeps is set for a server, which keeps archives for others.
	Keeps bool
	Keys  release.Keys // of this node
	// Client makes a client for servers.
	Client func() *http.Client
	// StoreFormat is the format of a server's store; 0 for an agent.
	StoreFormat int
	// Again stops this node gracefully, and starts the program that counts then.
	Again  func(why string)
	Logger *slog.Logger
}

// Node is a node's part. Its methods may be called concurrently.
type Node struct {
	Config
	started time.Time

	mu       sync.Mutex
	ready    bool
	stopping bool
	prepared string
	sums     string // digest of the checksums of the release that is prepared, or comes
	coming   string // version
	got      int64
	problem  error
}

// NewNode returns the part of a node that has just been started.
func NewNode(c Config) *Node { return &Node{Config: c, started: time.Now()} }

// Ready is called when the node has done its start.
func (n *Node) Ready() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = true
}

func (n *Node) dir() versions.Dir { return versions.In(n.DataDir) }

// ReleasesIn returns the releases in a data directory.
func ReleasesIn(dataDir string) Releases {
	return Releases(filepath.Join(string(versions.In(dataDir)), "releases"))
}

// LastingError is an error that another attempt would have again.
type LastingError struct{ Err error }

func (e *LastingError) Error() string { return e.Err.Error() }
func (e *LastingError) Unwrap() error { return e.Err }

// ServeHTTP answers a GET with the state, and does the order of a POST. It checks no caller.
func (n *Node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		var o Order
		if err := json.NewDecoder(io.LimitReader(r.Body, 4*release.MaxFile)).Decode(&o); err != nil {
			http.Error(w, "the order cannot be read: "+err.Error(), http.StatusBadRequest)
			return
		}
		if err := n.do(&o); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
	} else if r.Method != http.MethodGet {
		http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
		return
	}
	answer, err := n.Answer()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a client that has gone asks again
}

// Answer is the state of this node.
func (n *Node) Answer() (*Answer, error) {
	record, err := n.dir().Read()
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	a := &Answer{Name: n.Name, Arch: runtime.GOARCH, Version: version.Version, Ready: n.ready, Stopping: n.stopping,
		Started: n.started, Prepared: n.prepared, Sums: n.sums, Preparing: n.coming, Got: n.got}
	if n.problem != nil {
		var lasting *LastingError
		a.Problem, a.Lasting = n.problem.Error(), errors.As(n.problem, &lasting)
	}
	if record != nil {
		a.Trial = record.Trial != nil && record.Trial.Version == version.Version
		a.Failed = record.Failed
	}
	return a, nil
}

// do does an order. It returns at once: a program may come for minutes.
func (n *Node) do(o *Order) error {
	if !versionName.MatchString(o.Version) {
		return fmt.Errorf("version %q: %w", o.Version, ErrName)
	}
	switch o.Do {
	case Prepare:
		n.prepare(o)
		return nil
	case Try:
		if version.Version == o.Version {
			return nil
		}
		n.mu.Lock()
		prepared := n.prepared == o.Version
		n.mu.Unlock()
		if !prepared {
			return fmt.Errorf("version %s is not prepared on %s", o.Version, n.Name)
		}
		if err := n.dir().Try(o.Version, time.Duration(o.ReadySeconds)*time.Second,
			time.Duration(o.ConfirmSeconds)*time.Second); err != nil {
			return err
		}
		n.again("the leader upgrades this node to version " + o.Version)
		return nil
	case Confirm:
		if version.Version != o.Version {
			return fmt.Errorf("%s runs version %s, and not %s", n.Name, version.Version, o.Version)
		}
		return n.dir().Confirm(o.Version)
	case TakeBack:
		err := n.dir().TakeBack(o.Version, o.Why)
		if err == nil && version.Version == o.Version {
			n.again("the leader takes version " + o.Version + " back: " + o.Why)
		}
		return err
	}
	return fmt.Errorf("the order %q is not known to version %s", o.Do, version.Version)
}

// again starts the node again, once, after the answer has had time to go out.
func (n *Node) again(why string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stopping {
		return
	}
	n.stopping = true
	n.Logger.Info("this node is started again", "reason", why)
	time.AfterFunc(answerPatience, func() { n.Again(why) })
}

const (
	// answerPatience is the time for the answer to an order after which the node stops.
	answerPatience = 200 * time.Millisecond
	// prepareLimit bounds one attempt to get a program.
	prepareLimit = time.Hour
	// checkLimit bounds the run of a program that prints its version.
	checkLimit = time.Minute
)

// prepare begins to get a program, unless that is done or under way. A failed attempt is made again
// at the next order.
func (n *Node) prepare(o *Order) {
	sums := release.Digest(o.Sums)
	n.mu.Lock()
	defer n.mu.Unlock()
	var lasting *LastingError
	if n.coming != "" || n.sums == sums && (n.prepared == o.Version || errors.As(n.problem, &lasting)) {
		return
	}
	n.coming, n.prepared, n.sums, n.got, n.problem = o.Version, "", sums, 0, nil
	go func() { // ends by itself, within prepareLimit
		ctx, cancel := context.WithTimeout(context.Background(), prepareLimit)
		defer cancel()
		err := n.get(ctx, o)
		n.mu.Lock()
		defer n.mu.Unlock()
		n.coming, n.problem = "", err
		if err == nil {
			n.prepared = o.Version
			n.Logger.Info("the program of an upgrade is here", "version", o.Version)
		} else {
			n.Logger.Warn("the program of an upgrade is not here", "version", o.Version, "err", err)
		}
	}()
}

// believe verifies the checksums of a release by this node's keys, or else by those of the leader.
func (n *Node) believe(o *Order) (*release.Release, error) {
	keys := n.Keys
	if len(keys) == 0 {
		given, err := release.ParseKeys(o.Keys)
		if err != nil {
			return nil, fmt.Errorf("the leader's release keys: %w", err)
		}
		keys = given
	}
	if len(keys) > 0 {
		if err := keys.Verify(o.Sums, o.Signature); err != nil {
			return nil, err
		}
	} else if !o.Unsigned {
		return nil, fmt.Errorf(
			"%w: %s has no --release-key, and the upgrade does not say that it may be unsigned", release.ErrSignature,
			n.Name)
	}
	r, err := release.Parse(o.Sums)
	if err == nil && r.Version != o.Version {
		err = fmt.Errorf("the release is of version %s, and not %s", r.Version, o.Version)
	}
	return r, err
}

// get gets the program, and keeps archives if this node does.
func (n *Node) get(ctx context.Context, o *Order) error {
	r, err := n.believe(o)
	if err != nil {
		return &LastingError{err}
	}
	own := r.Archives[runtime.GOARCH]
	if own == "" {
		return &LastingError{fmt.Errorf("the release has no archive for %s", runtime.GOARCH)}
	}
	names := []string{own}
	for _, arch := range o.Architectures {
		if name := r.Archives[arch]; n.Keeps && name != "" && name != own {
			names = append(names, name)
		}
	}
	releases := ReleasesIn(n.DataDir)
	if n.Keeps || !n.dir().Has(o.Version, r.Digests[own]) {
		for _, name := range names {
			if err := releases.fetch(ctx, n.Client(), n.near(o.From), o.Version, name, r.Digests[name],
				n.note); err != nil {
				return err
			}
		}
	}
	if n.Keeps {
		if err := errors.Join(releases.Write(o.Version, release.SumsFile, o.Sums),
			releases.Write(o.Version, release.SignatureFile, o.Signature)); err != nil {
			return err
		}
	}
	if !n.dir().Has(o.Version, r.Digests[own]) {
		archive, err := releases.Open(o.Version, own)
		if err != nil {
			return err
		}
		defer archive.Close()
		if err := n.dir().Put(o.Version, r.Digests[own], archive, func(program string) error {
			return n.check(ctx, program, o.Version)
		}); err != nil {
			return &LastingError{err}
		}
	}
	if n.Keeps {
		return releases.removeOthers(o.Version)
	}
	return releases.Remove(o.Version)
}

func (n *Node) note(got int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.got = got
}

// near returns the addresses in an order of this node's own, so that nodes spread over servers.
func (n *Node) near(from []string) []string {
	if len(from) == 0 {
		return nil
	}
	sum := 0
	for _, c := range n.Name {
		sum = sum*31 + int(c)
	}
	first := uint(sum) % uint(len(from))
	return slices.Concat(from[first:], from[:first])
}

// About is the output of `barque version -o json`, as far as it is read here.
type About struct {
	Version     string `json:"version"`
	StoreFormat int    `json:"storeFormat"` // 0 in versions that do not say it
}

// AboutProgram runs a program for its version.
func AboutProgram(ctx context.Context, program string) (a About, err error) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	var errors bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "version", "-o", "json")
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		return a, fmt.Errorf("the program does not print its version: %w: %s", err, bytes.TrimSpace(errors.Bytes()))
	}
	if err := json.Unmarshal(out, &a); err != nil {
		return a, fmt.Errorf("the program does not print its version: %w", err)
	}
	return a, nil
}

// check lets the program print its version: it runs on this machine, is of the version, and reads
// the store.
func (n *Node) check(ctx context.Context, program, of string) error {
	a, err := AboutProgram(ctx, program)
	switch {
	case err != nil:
		return err
	case a.Version != of:
		return fmt.Errorf("the program in the archive is of version %q, and not %s", a.Version, of)
	case a.StoreFormat != 0 && a.StoreFormat < n.StoreFormat:
		return fmt.Errorf("version %s reads the store up to format %d, and that of %s has %d", of, a.StoreFormat,
			n.Name, n.StoreFormat)
	}
	return nil
}
