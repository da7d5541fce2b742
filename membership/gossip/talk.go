package gossip

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// A member asks another one for its view, or its report, in a message of the pool over TCP, and
// gets the answer in another message. This works for servers and agents alike, also while API and
// store do not. Messages are encrypted and not signed: a holder of the pool's key could answer in a
// member's name. So answers are only for operators that look for faults.
//
// A good-bye decides whether a member has left or is dead. Its contents are signed, like all facts
// of members. A holder of the key could replay an old one: as a message it counts for a death
// within lateGoodbye, as the metadata of a living member until that refutes it.

// message is a message between members, as JSON. An unknown kind is of a newer Barque and ignored.
type message struct {
	Kind  string          `json:"kind"`
	ID    string          `json:"id"` // of the question
	From  string          `json:"from"`
	View  *View           `json:"view,omitempty"`
	About json.RawMessage `json:"about,omitempty"`
	Meta  []byte          `json:"meta,omitempty"` // of From, signed, with its good-bye
}

const (
	askView     = "view?"
	answerView  = "view"
	askAbout    = "about?"
	answerAbout = "about"
	goodbye     = "good-bye"

	// maxAnswers bounds how many questions are answered at a time; more of them are dropped.
	maxAnswers = 4
	// maxAsked bounds how many members are asked, or get a good-bye, at a time; there are
	// fewer servers.
	maxAsked = 16
)

// talk holds the pending requests of this member.
type talk struct {
	mu      sync.Mutex
	isOpen  bool
	running sync.WaitGroup // answers and questions
	asked   map[string]chan message
	answers int
}

// open is called once memberlist is there; messages may come before.
func (t *talk) open() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isOpen = true
}

// start runs f unless the pool is closing. close waits for it.
func (t *talk) start(f func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isOpen {
		return false
	}
	t.running.Go(f)
	return true
}

func (t *talk) close() {
	t.mu.Lock()
	t.isOpen = false
	t.mu.Unlock()
	t.running.Wait()
}

func (t *talk) expect(id string) <-chan message {
	t.mu.Lock()
	defer t.mu.Unlock()
	answer := make(chan message, 1)
	t.asked[id] = answer
	return answer
}

func (t *talk) forget(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.asked, id)
}

func (t *talk) deliver(m message) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if answer, ok := t.asked[m.ID]; ok {
		answer <- m
		delete(t.asked, m.ID)
	}
}

// begin and end count the answers under way.
func (t *talk) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.answers >= maxAnswers {
		return false
	}
	t.answers++
	return true
}

func (t *talk) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.answers--
}

// errLeaving is returned for a question of a pool that is shutting down.
var errLeaving = errors.New("this member is leaving the pool")

// ViewOf asks another member for its view. The context should have a deadline: an absent member
// does not answer.
func (p *Pool) ViewOf(ctx context.Context, name string) (View, error) {
	m, err := p.ask(ctx, name, askView)
	if err != nil {
		return View{}, err
	}
	if m.View == nil || m.View.From != name {
		return View{}, fmt.Errorf("the answer of %q is not its view", name)
	}
	return *m.View, nil
}

// AboutOf asks another member for its report, the result of its Config.About. The context should
// have a deadline: an absent member, or one without a report, does not answer.
func (p *Pool) AboutOf(ctx context.Context, name string) (json.RawMessage, error) {
	m, err := p.ask(ctx, name, askAbout)
	return m.About, err
}

// ask sends a question to another member and waits for the answer.
func (p *Pool) ask(ctx context.Context, name, kind string) (message, error) {
	m, ok := p.Member(name)
	if !ok {
		return message{}, fmt.Errorf("no member of the pool is named %q", name)
	}
	id := rand.Text()
	answer := p.talk.expect(id)
	defer p.talk.forget(id)
	sent := make(chan error, 1)
	// Sending takes up to memberlist's TCP timeout, whatever the context.
	if !p.talk.start(func() { sent <- p.send(m, message{Kind: kind, ID: id, From: p.config.Name}) }) {
		return message{}, errLeaving
	}
	for {
		select {
		case a := <-answer:
			if a.From != name {
				return message{}, fmt.Errorf("%q answers in the name of %q", a.From, name)
			}
			return a, nil
		case err := <-sent:
			if err != nil {
				return message{}, fmt.Errorf("ask %s at %s: %w", name, m.Addr, err)
			}
			sent = nil
		case <-ctx.Done():
			return message{}, fmt.Errorf("%s at %s does not answer: %w", name, m.Addr, context.Cause(ctx))
		}
	}
}

// Views returns this member's own view, and those of the living members that which selects. The
// second result has the members without an answer, with the reason.
func (p *Pool) Views(ctx context.Context, which func(Member) bool) ([]View, map[string]error) {
	var others []Member
	for _, m := range p.Members() {
		if m.Name != p.config.Name && m.State == Alive && which(m) {
			others = append(others, m)
		}
	}
	views, errs := make([]View, 1+len(others)), make([]error, 1+len(others))
	turn := make(chan struct{}, maxAsked)
	var asking sync.WaitGroup
	asking.Go(func() { views[0] = p.View(ctx) })
	for i, m := range others {
		asking.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			views[1+i], errs[1+i] = p.ViewOf(ctx, m.Name)
		})
	}
	asking.Wait()
	answers, silent := views[:1], map[string]error{}
	for i, m := range others {
		if err := errs[1+i]; err != nil {
			silent[m.Name] = err
		} else {
			answers = append(answers, views[1+i])
		}
	}
	return answers, silent
}

func (p *Pool) send(to Member, m message) error {
	text, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message: %w", err)
	}
	return p.list.SendReliable(&memberlist.Node{Name: to.Name, Addr: to.Addr.Addr().AsSlice(), Port: to.Addr.Port()},
		text)
}

// NotifyMsg implements memberlist.Delegate. It must not block.
func (p *Pool) NotifyMsg(text []byte) {
	var m message
	if err := json.Unmarshal(text, &m); err != nil {
		p.config.Logger.Debug("gossip message is not understood", "err", err)
		return
	}
	switch m.Kind {
	case answerView, answerAbout:
		p.talk.deliver(m)
	case askView:
		p.answer(m, func(a *message) {
			view := p.View(context.Background()) // bounded by itself
			a.Kind, a.View = answerView, &view
		})
	case goodbye:
		p.hearGoodbye(m)
	case askAbout:
		if p.config.About != nil {
			p.answer(m, func(a *message) { a.Kind, a.About = answerAbout, p.config.About() })
		}
	}
}

// sayGoodbye sends this member's departure to the living servers, and in a small pool to all
// members. It is gossiped as well, but gossip drops it where the end of the member arrives first.
// Servers must distinguish members that left from dead ones. It waits for Config.Goodbye at most.
// Later members still get it, as long as sending takes.
func (p *Pool) sayGoodbye() error {
	meta, err := p.metadata()
	if err != nil {
		return err
	}
	members := slices.DeleteFunc(p.Members(),
		func(m Member) bool { return m.State != Alive || m.Name == p.config.Name })
	if len(members) > maxAsked {
		members = slices.DeleteFunc(members, func(m Member) bool { return m.Role != "server" })
	}
	told, telling := make(chan error, len(members)), 0
	for _, m := range members {
		if p.talk.start(func() { told <- p.send(m, message{Kind: goodbye, From: p.config.Name, Meta: meta}) }) {
			telling++
		}
	}
	enough := time.NewTimer(p.config.Goodbye)
	defer enough.Stop()
	for ; telling > 0; telling-- {
		select {
		case e := <-told:
			err = errors.Join(err, e)
		case <-enough.C:
			return errors.Join(err, fmt.Errorf("%d members have not taken it within %s", telling, p.config.Goodbye))
		}
	}
	return err
}

// hearGoodbye records a member's departure, which counts if its end follows, or came just before.
func (p *Pool) hearGoodbye(m message) {
	from, known := p.Member(m.From)
	if !known {
		return
	}
	node := &memberlist.Node{Name: m.From, Addr: from.Addr.Addr().AsSlice(), Port: from.Addr.Port(), Meta: m.Meta}
	holder, facts, err := p.prove(node)
	if err == nil && !facts.Leaving {
		err = errors.New("it does not say good-bye")
	}
	if err != nil {
		p.config.Logger.Debug("a good-bye is not believed", "member", m.From, "reason", err)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.members[m.From].State == Alive {
		p.leaving[m.From] = p.config.Now()
	} else {
		p.hearLate(node, holder, facts)
	}
}

// isLeaving reports whether a living member has said good-bye. The caller holds mu.
func (p *Pool) isLeaving(name string) bool {
	said, ok := p.leaving[name]
	return p.members[name].Facts.Leaving || ok && p.config.Now().Sub(said) < lateGoodbye
}

// answer sends fill's data to the member that has asked, at its verified address instead of the
// request's source.
func (p *Pool) answer(question message, fill func(*message)) {
	asker, known := p.Member(question.From)
	if !known || !p.talk.begin() {
		return
	}
	if !p.talk.start(func() {
		defer p.talk.end()
		a := message{ID: question.ID, From: p.config.Name}
		fill(&a)
		if err := p.send(asker, a); err != nil {
			p.config.Logger.Debug("gossip answer could not be sent", "to", asker.Name, "kind", a.Kind, "err", err)
		}
	}) {
		p.talk.end()
	}
}
