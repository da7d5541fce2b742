package node

import (
	"errors"
	"fmt"
	"maps"
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
//	                            ├─▶ a majority of the voters was not ────────▶ it holds back, and asks again; after outlivedAfter: outlived, for good
//	                            └─▶ nobody knows for certain ────────────────▶ it holds back, and asks again
//
// Outlived it gives no vote and asks for none, takes and sends no entries, and serves nothing; its directory is marked,
// so that a restart changes nothing; and the program is told, and closes it.
//
// Who holds back gives no vote and asks for none, and does not lead, but runs on, and takes no write: it may be a server
// of a cluster that is well, whose other members cannot be asked at the moment; and if it is not, it must not serve beside the heir.
//
// When the recovery was is told as how long ago, and each server counts back by its own clock from when it hears that: the clocks
// of two may differ by any time that does not change. What the heir's own says must not have been set since.
//
// The server that was recovered is known not to have been in touch: it did not run.
//
// A server says hello to all members as soon as it is opened, which normally is before it would stand for election, so as to hear
// of it before it has a majority. It is told again with every connection that it tries.

// heirs is what a server knows of those who call themselves heirs of its cluster.
type heirs struct {
	claims   chan claim    // that are to be judged
	changed  chan struct{} // holds a token when this server has begun or ceased to hold back
	outlived atomic.Pointer[Succession]
	held     atomic.Pointer[Succession] // for which this server holds back
	rival    atomic.Pointer[Rival]
	rivals   foreigners // that were told of

	mu    sync.Mutex
	heard map[string]saying // by server, a member
}

// saying is what another server has said of itself when it asked about the same.
type saying struct {
	claim Succession
	word  word
	at    time.Time
}

// sayingHolds is for how long that counts, and what is said of how long ago a recovery was: a server that is outlived stops, and is asked
// in vain.
const sayingHolds = time.Minute

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
	case n.heirs.claims <- claim{*stranger.Succession, stranger.Address, stranger.heard, stranger.ago}:
	default: // others are being judged, and this one comes again
	}
}

// judgeClaims ends with the node, or when this server is outlived.
func (n *Node) judgeClaims() {
	var d docket
	for {
		again := make(<-chan time.Time)
		if d.open() {
			again = time.After(0)
		}
		select {
		case c := <-n.heirs.claims:
			d.hear(c)
		case <-again:
		case <-n.ctx.Done():
			return
		}
		for len(n.heirs.claims) > 0 { // nobody else takes them
			d.hear(<-n.heirs.claims)
		}
		for _, t := range d.trials {
			if (t.due || t.open) && n.judge(&d, t) == isOutlived {
				return
			}
		}
		// Each question may bring the next claim.
		select {
		case <-time.After(contactEvery):
		case <-n.ctx.Done():
			return
		}
	}
}

// findings are what is known of the time at which somebody says that this cluster was recovered.
type findings struct {
	disowned bool
	well     bool // one was in touch with a leader then
	out      int  // how many voters were not, for certain
	voters   int  // and others that may be, since another member knows of them
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
	isOutlived                  // the cluster had lost its quorum, as was found again and again
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
func (n *Node) judge(d *docket, t *trial) judgement {
	f := n.find(t)
	v := t.weigh(f.judge(), f.leads, time.Now())
	if v == isOutlived { // held back until the end
		n.outlive(t.claim)
		return v
	}
	if v == inDoubt && t.out == 1 {
		n.cfg.Logger.Warn("most servers of this cluster had no leader when another one was recovered, as far as they answer: unless one turns out to know better, this server is going to stop for good",
			"server", n.id.ServerID, "its", t.Heir, "for", outlivedAfter)
	}
	if held := d.holder(); held != nil {
		n.holdBack(held.claim)
	} else {
		n.release()
	}
	if v != isWell {
		return v
	}
	if f.leads && !f.disowned {
		if err := n.disown(t.Succession); err != nil { // it is tried again when the other one is met again
			n.cfg.Logger.Warn("cannot write down that another cluster is not the heir of this one", "its", t.Heir, "err", err)
		}
	}
	if f.leads || f.disowned {
		n.meetRival(t.claim)
	}
	return v
}

// find asks the other members, but for whoever is where the claim came from.
func (n *Node) find(t *trial) findings {
	f := findings{disowned: n.disowned(t.Succession), leads: n.leadership.term() != 0}
	if f.disowned {
		return f
	}
	n.notePresence()
	now := time.Now()
	when := t.when(now)
	f.goesOn = n.presence.goesOn(when)
	own := n.presence.at(when)
	if time.Since(now) > presenceSlack { // this process was suspended in between, and looked for another moment
		own = unknownWord
	}
	if _, leader := n.leaderWithID(); leader != "" && string(leader) != n.id.ServerID {
		f.led = true
	}
	i := inquiry{node: n, claim: t.claim, began: now, question: hello{
		ID: n.id.ServerID, Address: n.cfg.Stream.Addr(), Claim: &t.Succession, Ago: &when, Word: own,
	}}
	words := i.ask()
	f.led = f.led || i.led
	for _, w := range words {
		f.well = f.well || w == wasInTouch // whoever says so, also one who has no vote, or is not known here
	}
	if t.By != n.id.ServerID {
		words[t.By] = wasNot
	}
	for _, m := range n.Members() {
		if m.Voter {
			f.voters++
			if words[m.ID] == wasNot {
				f.out++
			}
		}
	}
	f.voters += len(i.unknown)
	return f
}

// wordOn is what this server knows itself: whether its cluster had a leader when somebody recovered a server of it.
func (n *Node) wordOn(s Succession, when ago) word {
	if n.disowned(s) {
		return wasInTouch
	}
	return n.presence.at(when)
}

// hear takes what another member says of itself when it asks.
func (h *heirs) hear(id string, s Succession, w word, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.heard == nil {
		h.heard = make(map[string]saying)
	}
	h.heard[id] = saying{s, w, now}
	maps.DeleteFunc(h.heard, func(_ string, said saying) bool { return now.Sub(said.at) >= sayingHolds })
}

// sayings returns what others have said of late.
func (h *heirs) sayings(s Succession, now time.Time) map[string]word {
	h.mu.Lock()
	defer h.mu.Unlock()
	words := make(map[string]word)
	for id, said := range h.heard {
		if said.claim.recovery() == s.recovery() && now.Sub(said.at) < sayingHolds {
			words[id] = said.word
		}
	}
	return words
}

// holdBack keeps this server from voting, from standing for election, and from leading, until it is released.
func (n *Node) holdBack(c claim) {
	if was := n.heirs.held.Swap(&c.Succession); was != nil && was.recovery() == c.recovery() {
		return
	}
	n.heirs.tell()
	n.cfg.Logger.Error("a server says that this server's cluster was recovered without it, and it is not known for certain yet whether the cluster had a leader then: "+
		"until it is, this server gives no vote and does not lead; start the other servers of this cluster; or, if that other one was recovered by mistake, stop it, and start this one again; "+
		"or, if it is right, "+n.cfg.JoinAgain,
		"server", n.id.ServerID, "cluster", c.Cluster, "its", c.Heir, "recovered", c.At, "by", c.By, "toldBy", c.from)
}

// release ends that. Raft may have this server for the leader all the time, as when it is the only voter.
func (n *Node) release() {
	if s := n.heirs.held.Swap(nil); s != nil {
		n.heirs.tell()
		n.cfg.Logger.Info("this server takes part again: it is known now what became of its cluster", "server", n.id.ServerID, "cluster", s.Cluster, "other", s.Heir)
	}
}

// tell makes followLeadership look whether this server holds back.
func (h *heirs) tell() {
	select {
	case h.changed <- struct{}{}:
	default: // a token is there
	}
}

// holdsBack returns an ErrUnavailable while this server holds back.
func (n *Node) holdsBack() error {
	if s := n.heirs.held.Load(); s != nil {
		return fmt.Errorf("%w: this server holds back: it was told that %s, and it is not known for certain yet whether the cluster had a leader then", kv.ErrUnavailable, s)
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
