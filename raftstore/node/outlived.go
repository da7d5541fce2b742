package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// What a server makes of the word that its cluster was recovered without it, and goes on as another one. All depends on
// whether its cluster had a quorum at that time: then somebody has recovered a server of its minority by mistake, and it is that one
// which must not go on. Every server has a record of when it was in touch with a leader (presence.go), and asks the others for
// what theirs says:
//
//	told ──by a server of the CA──▶ one was in touch then, or it is disowned ─▶ well: the leader writes down that the other is no heir
//	                            ├─▶ a leader is known ───────────────────────▶ for the leader to judge
//	                            ├─▶ a majority of the voters was not ────────▶ outlived, for good
//	                            └─▶ nobody knows for certain ────────────────▶ it holds back, and asks again
//
// Outlived it gives no vote and asks for none, takes and sends no entries, and serves nothing; its directory is marked,
// so that a restart changes nothing; and the program is told, and closes it.
//
// Who holds back gives no vote and asks for none, and does not lead, but runs on, and nothing is written: it may be a server
// of a cluster that is well, whose other members cannot be asked at the moment; and if it is not, it must not serve beside the heir.
//
// The server that was recovered is known not to have been in touch: it did not run.
//
// A server says hello to all members as soon as it is opened, which normally is before it would stand for election, so as to hear
// of it before it has a majority. It is told again with every connection that it tries.

// claim is somebody's word that the cluster of this server was recovered.
type claim struct {
	Succession
	from string // address
}

// heirs is what a server knows of those who call themselves heirs of its cluster.
type heirs struct {
	claims   chan claim // holds one that is to be judged
	outlived atomic.Pointer[Succession]
	held     atomic.Pointer[Succession] // for which this server holds back
	rival    atomic.Pointer[Rival]
	rivals   foreigners // that were told of
	doubts   int        // of this server, while it leads, one after the other; judgeClaims' own

	mu    sync.Mutex
	heard map[string]saying // by server
}

// saying is what another server has said of itself when it asked about the same.
type saying struct {
	claim Succession
	word  word
	at    time.Time
}

const (
	// sayingHolds is for how long that counts: a server that is outlived stops, and is asked in vain.
	sayingHolds = time.Minute
	// doubtsOfLeader is after how many doubts a server that leads holds back: others may just be slow to answer.
	doubtsOfLeader = 3
)

// Rival is a server of a cluster that was recovered from this one while this one was well.
type Rival struct {
	Succession
	Address string    `json:"address"`
	Heard   time.Time `json:"heard"`
}

// rivalShown is for how long a rival is told of that was not met again.
const rivalShown = time.Minute

// heed looks for such a word in the error of a connection that did not come about. It does not block.
func (n *Node) heed(err error) {
	var stranger *StrangerError
	if !errors.As(err, &stranger) || stranger.Succession == nil || stranger.Succession.Cluster != n.id.ClusterID {
		return
	}
	select {
	case n.heirs.claims <- claim{*stranger.Succession, stranger.Address}:
	default: // one is being judged, and this one comes again
	}
}

// judgeClaims ends with the node, or when this server is outlived.
func (n *Node) judgeClaims() {
	var last claim
	again := make(<-chan time.Time) // while in doubt
	for {
		select {
		case last = <-n.heirs.claims:
		case <-again:
		case <-n.ctx.Done():
			return
		}
		v := n.judge(last)
		if v == isOutlived {
			return
		}
		// Each question may bring the next claim.
		select {
		case <-time.After(contactEvery):
		case <-n.ctx.Done():
			return
		}
		again = make(<-chan time.Time)
		if v == inDoubt {
			again = time.After(0)
		}
	}
}

// findings are what is known of the time at which somebody says that this cluster was recovered.
type findings struct {
	disowned bool
	well     bool // one was in touch with a leader then
	out      int  // how many voters were not, for certain
	voters   int
	leads    bool // this server does
	led      bool // by another one, as this server or another one knows
	// goesOn tells that this server, which leads, has been in touch without a break since before that time, which is about
	// now by its clock, or later.
	goesOn bool
}

type judgement int

const (
	isWell     judgement = iota // the one who says so is no heir
	forOthers                   // the leader is to judge
	notYet                      // it is soon known
	inDoubt                     // this server holds back
	isOutlived                  // the cluster had lost its quorum
)

// judge tells what follows from them.
func (f findings) judge() judgement {
	switch {
	case f.disowned || f.well:
		return isWell
	case !f.leads && f.led:
		return forOthers
	case f.voters > 0 && f.out > f.voters/2:
		return isOutlived
	case f.leads && f.goesOn:
		return notYet
	}
	return inDoubt
}

// judge finds out what a claim means for this server, and does what follows.
func (n *Node) judge(c claim) judgement {
	f := n.find(c)
	v := f.judge()
	if v != inDoubt {
		n.heirs.doubts = 0
		n.release()
	}
	switch v {
	case isWell:
		if f.leads && !f.disowned {
			if err := n.disown(c.Succession); err != nil { // it is tried again when the other one is met again
				n.cfg.Logger.Warn("cannot write down that another cluster is not the heir of this one", "its", c.Heir, "err", err)
			}
		}
		if f.leads || f.disowned {
			n.meetRival(c)
		}
	case inDoubt:
		if n.heirs.doubts++; !f.leads || n.heirs.doubts >= doubtsOfLeader {
			n.holdBack(c)
		}
	case isOutlived:
		n.outlive(c)
	}
	return v
}

// find asks the other members, but for whoever is where the claim came from.
func (n *Node) find(c claim) findings {
	now := wallTime()
	n.notePresence()
	f := findings{disowned: n.disowned(c.Heir), leads: n.leadership.term() != 0}
	if since := n.presence.since(now); !since.IsZero() {
		f.goesOn = since.Before(c.At)
	}
	if _, leader := n.raft.LeaderWithID(); leader != "" && string(leader) != n.id.ServerID {
		f.led = true
	}
	own := n.wordOn(c.Succession)
	words := n.askAbout(c, own, &f)
	words[n.id.ServerID] = own
	if _, ok := n.member(c.By); ok && c.By != n.id.ServerID {
		words[c.By] = wasNot
	}
	for _, m := range n.Members() {
		if m.Voter {
			f.voters++
		}
		switch words[m.ID] {
		case wasInTouch:
			f.well = true
		case wasNot:
			if m.Voter {
				f.out++
			}
		}
	}
	f.well = f.well || own == wasInTouch
	return f
}

// askAbout returns what the other members say of a claim, now or of late, and whether one follows a leader.
func (n *Node) askAbout(c claim, own word, f *findings) map[string]word {
	ctx, cancel := context.WithTimeout(n.ctx, min(n.cfg.Timeouts.Call, n.cfg.Timeouts.Heartbeat/2))
	defer cancel()
	question := hello{ID: n.id.ServerID, Address: n.cfg.Stream.Addr(), Claim: &c.Succession, Word: own}
	words := n.heirs.sayings(c.Succession, time.Now())
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, m := range n.others() {
		if m.ID == c.By || n.book.of(m.ID, m.Address) == c.from {
			continue
		}
		asking.Go(func() {
			var answer hello
			data, err := n.tell(ctx, m, callHello, question)
			if err != nil || json.Unmarshal(data, &answer) != nil || answer.ID != m.ID {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if answer.Leader != "" && answer.Leader != n.id.ServerID {
				f.led = true
			}
			if answer.Word != unknownWord {
				words[m.ID] = answer.Word
			}
		})
	}
	asking.Wait()
	return words
}

// wordOn is what this server knows itself: whether its cluster had a leader when somebody recovered a server of it.
func (n *Node) wordOn(s Succession) word {
	if n.disowned(s.Heir) {
		return wasInTouch
	}
	return n.presence.at(s.At, wallTime())
}

// hear takes what another server says of itself when it asks.
func (h *heirs) hear(id string, s Succession, w word) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.heard == nil {
		h.heard = make(map[string]saying)
	}
	h.heard[id] = saying{s, w, time.Now()}
}

// sayings returns what others have said of late.
func (h *heirs) sayings(s Succession, now time.Time) map[string]word {
	h.mu.Lock()
	defer h.mu.Unlock()
	words := make(map[string]word)
	for id, said := range h.heard {
		if said.claim.Heir == s.Heir && said.claim.At.Equal(s.At) && now.Sub(said.at) < sayingHolds {
			words[id] = said.word
		}
	}
	return words
}

// holdBack keeps this server from voting, from standing for election, and from leading, until it is released.
func (n *Node) holdBack(c claim) {
	if n.heirs.held.Swap(&c.Succession) != nil {
		return
	}
	n.leadership.deposed(n.holdsBack())
	n.cfg.Logger.Error("a server says that this server's cluster was recovered without it, and nobody who can be asked knows whether the cluster had a leader then: "+
		"until it is known, this server gives no vote and does not lead; start the other servers of this cluster; or, if that other one was recovered by mistake, stop it, and start this one again; "+
		"or, if it is right, "+n.cfg.JoinAgain,
		"server", n.id.ServerID, "cluster", c.Cluster, "its", c.Heir, "recovered", c.At, "by", c.By, "toldBy", c.from)
}

// release ends that.
func (n *Node) release() {
	if s := n.heirs.held.Swap(nil); s != nil {
		n.cfg.Logger.Info("this server takes part again: it is known now what became of its cluster", "server", n.id.ServerID, "cluster", s.Cluster, "other", s.Heir)
	}
}

// holdsBack returns an ErrUnavailable while this server holds back.
func (n *Node) holdsBack() error {
	if s := n.heirs.held.Load(); s != nil {
		return fmt.Errorf("%w: this server holds back: it was told that %s, and nobody who can be asked knows whether the cluster had a leader then", kv.ErrUnavailable, s)
	}
	return nil
}

// meetRival tells of a cluster that was recovered from this one while this one was well.
func (n *Node) meetRival(c claim) {
	n.heirs.rival.Store(&Rival{c.Succession, c.from, time.Now()})
	if n.heirs.rivals.note(c.from, c.Heir, time.Now()) {
		n.cfg.Logger.Error("a server was recovered as a cluster of its own while this cluster has a quorum: it is no heir of this one; stop it, and then "+n.cfg.JoinAgain,
			"server", c.By, "address", c.from, "its", c.Heir, "this", n.id.ClusterID, "recovered", c.At)
	}
}

// currentRival returns the rival that was met of late, or nil.
func (n *Node) currentRival() *Rival {
	if r := n.heirs.rival.Load(); r != nil && time.Since(r.Heard) < rivalShown {
		return r
	}
	return nil
}

// outlive takes this server out of service, for good.
func (n *Node) outlive(c claim) {
	e := &OutlivedError{Dir: n.cfg.Dir, Succession: c.Succession}
	n.heirs.outlived.Store(&e.Succession)
	n.stream.cut() // no vote, no entry, no heartbeat from here on
	n.quarantine.begin(e.Error())
	n.withdraw()
	n.cfg.Logger.Error("this server's cluster was recovered without it: it serves nothing any more, and stops; "+n.cfg.JoinAgain,
		"server", n.id.ServerID, "cluster", c.Cluster, "goesOnAs", c.Heir, "recovered", c.At, "by", c.By, "toldBy", c.from)
	if !n.cfg.InMemory {
		if err := writeJSON(filepath.Join(n.cfg.Dir, outlivedFile), c.Succession); err != nil { // it is told again at the next start
			n.cfg.Logger.Error("cannot mark the directory of a server whose cluster was recovered without it: do not start it again as it is", "err", err)
		}
	}
	if n.cfg.OnOutlived != nil {
		n.cfg.OnOutlived(c.Succession)
	}
}

// whyOutlived returns an ErrUnavailable when this server's cluster was recovered without it.
func (n *Node) whyOutlived() error {
	if s := n.heirs.outlived.Load(); s != nil {
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, &OutlivedError{Dir: n.cfg.Dir, Succession: *s})
	}
	return nil
}
