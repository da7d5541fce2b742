package announce

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/edge/hold"
)

// Holder knows which addresses this node may answer for. It is a *hold.Holder.
type Holder interface {
	Holds(addr netip.Addr) bool
	// Answer calls send if this node may answer, and drops nothing meanwhile.
	Answer(addr netip.Addr, send func()) bool
	// Limit calls set with the end of all holds, now and when it changes.
	Limit(set func(end hold.Instant))
	// Held returns all, and a channel that is closed when they change.
	Held() ([]hold.Hold, <-chan struct{})
}

// Config of an Announcer. Holder and Own are needed.
type Config struct {
	Holder Holder
	// Own are the node's own addresses.
	Own []netip.Addr
	// Conflict is called when another machine answers for a held address, at most once a minute for
	// each. It must not block; nil does nothing.
	Conflict func(addr netip.Addr, mac net.HardwareAddr, link string)
	Logger   *slog.Logger
}

// Announcer answers for held addresses. Make it with New and run it once.
type Announcer struct {
	config   Config
	metrics  *metrics
	deadline *deadline // nil: this kernel has none

	mu sync.Mutex
	// open are the sockets in use, by link and protocol.
	open map[key]*reader
	// judges are the kernel's programs at the links of these sockets, by link.
	judges map[int]*os.File
	told   map[string]time.Time // conflicts that were reported, by address and MAC
}

type key struct {
	link int
	ipv6 bool
}

// reader is an open socket, with the goroutine that answers.
type reader struct {
	*socket
	joined map[netip.Addr]bool
	done   chan struct{}
}

type metrics struct{ answers, announced, conflicts *prometheus.CounterVec }

// New returns an Announcer that answers nothing yet.
func New(c Config) *Announcer {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Conflict == nil {
		c.Conflict = func(netip.Addr, net.HardwareAddr, string) {}
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "barque_edge_" + name, Help: help},
			[]string{"family"})
	}
	return &Announcer{config: c, open: map[key]*reader{}, judges: map[int]*os.File{},
		told: map[string]time.Time{}, metrics: &metrics{
			counter("neighbour_answers_total", "Answers to questions for held addresses, by ARP and neighbour discovery."),
			counter("neighbour_announcements_total", "Unasked announcements of held addresses."),
			counter("neighbour_conflicts_total", "Packets in which another machine claims a held address."),
		}}
}

// Collectors returns the metrics.
func (a *Announcer) Collectors() []prometheus.Collector {
	return []prometheus.Collector{a.metrics.answers, a.metrics.announced, a.metrics.conflicts}
}

func family(addr netip.Addr) string {
	if addr.Is4() {
		return "ipv4"
	}
	return "ipv6"
}

const (
	// takeOvers is the number of announcements after a take-over, and takeOverPause lies between
	// them: any of them may get lost.
	takeOvers     = 3
	takeOverPause = 300 * time.Millisecond
	// repeatEvery is the interval of announcements after those. Some switches forget.
	repeatEvery = time.Minute
	// scanEvery is how soon a new interface is noticed while something is held.
	scanEvery = 5 * time.Second
	// conflictEvery bounds reports of the same conflict.
	conflictEvery = time.Minute
)

// due is when a held address is to be announced, and how often it was since its take-over.
type due struct {
	since hold.Instant
	at    time.Time
	times int
}

// Run answers until ctx ends. When it returns, nothing answers any more.
func (a *Announcer) Run(ctx context.Context) error {
	defer a.bound()()
	defer a.close()
	dues := map[netip.Addr]due{}
	said := ""
	scan := time.Time{}
	for {
		holds, changed := a.config.Holder.Held()
		now := time.Now()
		var held []netip.Addr
		for _, h := range holds {
			held = append(held, h.Addr)
			if d, known := dues[h.Addr]; !known || d.since != h.Since {
				dues[h.Addr] = due{since: h.Since, at: now}
				scan = now
			}
		}
		maps.DeleteFunc(dues, func(addr netip.Addr, _ due) bool { return !slices.Contains(held, addr) })
		if !now.Before(scan) {
			text := ""
			if err := a.settle(held); err != nil {
				text = err.Error()
			}
			if text != "" && text != said {
				a.config.Logger.Error("cannot answer for held addresses on every link, and will try again", "err", text)
			}
			said, scan = text, now.Add(scanEvery)
		}
		next := scan
		if len(held) == 0 {
			next = now.Add(time.Hour)
		}
		for addr, d := range dues {
			if !now.Before(d.at) {
				a.announce(addr)
				d.times++
				d.at = now.Add(repeatEvery)
				if d.times < takeOvers {
					d.at = now.Add(takeOverPause)
				}
				dues[addr] = d
			}
			if d.at.Before(next) {
				next = d.at
			}
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// bound lets the kernel know the end of the holds, and returns the function that ends that.
func (a *Announcer) bound() (end func()) {
	d, err := newDeadline()
	if err != nil {
		a.config.Logger.Info("this kernel does not look at the time of an answer: a process that is stopped between "+
			"its look at the clock and its answer sends that late", "err", err)
		return func() {}
	}
	a.deadline = d
	a.config.Holder.Limit(d.set)
	return func() {
		a.config.Holder.Limit(func(hold.Instant) {})
		if err := d.close(); err != nil {
			a.config.Logger.Debug("free the end of the holds", "err", err)
		}
	}
}

// watch makes the kernel judge what a socket sends. The caller has mu.
func (a *Announcer) watch(s *socket) {
	if a.deadline == nil {
		return
	}
	err := func() (err error) {
		if a.judges[s.link.index] == nil { // a link has one for both protocols
			if a.judges[s.link.index], err = a.deadline.attach(s.link); err != nil {
				delete(a.judges, s.link.index)
				return err
			}
		}
		return s.mark(deadlineMark)
	}()
	if err != nil {
		a.config.Logger.Info("this kernel does not look at the time of the answers on a link",
			"link", s.link.name, "err", err)
	}
}

// dismiss ends the programs at links without a socket. The caller has mu.
func (a *Announcer) dismiss() (err error) {
	for index, judge := range a.judges {
		if a.open[key{index, false}] == nil && a.open[key{index, true}] == nil {
			err = errors.Join(err, judge.Close())
			delete(a.judges, index)
		}
	}
	return err
}

// settle opens the sockets that held addresses need, and closes the others.
func (a *Announcer) settle(held []netip.Addr) error {
	var all []network
	var errs []error
	if len(held) > 0 {
		var err error
		if all, err = networks(); err != nil {
			return err
		}
	}
	wanted, groups := map[key]link{}, map[key]map[netip.Addr]bool{}
	for _, addr := range held {
		links := linksFor(addr, all, a.config.Own)
		if len(links) == 0 {
			errs = append(errs, errors.New("no interface leads to "+addr.String()))
		}
		for _, l := range links {
			k := key{l.index, addr.Is6()}
			wanted[k] = l
			if groups[k] == nil {
				groups[k] = map[netip.Addr]bool{}
			}
			groups[k][addr] = true
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, r := range a.open {
		ended := false
		select {
		case <-r.done: // its interface is gone
			ended = true
		default:
		}
		if l, ok := wanted[k]; ended || !ok || !slices.Equal(l.mac, r.link.mac) {
			r.close()
			delete(a.open, k)
		}
	}
	errs = append(errs, a.dismiss())
	for k, l := range wanted {
		r := a.open[k]
		if r == nil {
			s, err := open(l, k.ipv6)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			r = &reader{socket: s, joined: map[netip.Addr]bool{}, done: make(chan struct{})}
			a.open[k] = r
			a.watch(s)
			go a.answer(r) // ends when the socket is closed
		}
		if k.ipv6 {
			errs = append(errs, r.memberships(groups[k]))
		}
	}
	return errors.Join(errs...)
}

// memberships makes the socket a member of the groups of these addresses, and of no others.
func (r *reader) memberships(of map[netip.Addr]bool) (err error) {
	for addr := range of {
		if !r.joined[addr] {
			if e := r.join(addr); e != nil {
				err = errors.Join(err, e)
				continue
			}
			r.joined[addr] = true
		}
	}
	for addr := range r.joined {
		// Another address of the same group may still need it.
		if !of[addr] &&
			!slices.ContainsFunc(slices.Collect(maps.Keys(of)),
				func(o netip.Addr) bool { return group(o) == group(addr) }) {
			err = errors.Join(err, r.leave(addr))
		}
		if !of[addr] {
			delete(r.joined, addr)
		}
	}
	return err
}

func (a *Announcer) close() {
	a.mu.Lock()
	open := slices.Collect(maps.Values(a.open))
	clear(a.open)
	a.mu.Unlock()
	for _, r := range open {
		if err := r.close(); err != nil {
			a.config.Logger.Debug("close a packet socket", "link", r.link.name, "err", err)
		}
		<-r.done
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.dismiss(); err != nil {
		a.config.Logger.Debug("end the programs at links", "err", err)
	}
}

// answer answers the questions on one link.
func (a *Announcer) answer(r *reader) {
	defer close(r.done)
	buffer := make([]byte, 2048)
	for {
		n, err := r.read(buffer)
		switch {
		case errors.Is(err, os.ErrClosed):
			return
		case errors.Is(err, errNetDown): // the interface went down, and may come up again
			continue
		case err != nil:
			a.config.Logger.Warn("cannot read the questions of a link", "link", r.link.name, "err", err)
			return
		}
		p, ok := parse(buffer[:n])
		if !ok {
			continue
		}
		a.handle(r, p)
	}
}

func (a *Announcer) handle(r *reader, p packet) {
	if addr := p.claims; addr.IsValid() && !slices.Equal(p.mac, r.link.mac) && a.config.Holder.Holds(addr) {
		a.conflict(r, addr, p.mac)
	}
	if addr := p.asks; addr.IsValid() && a.config.Holder.Holds(addr) {
		sent, err := a.send(r, addr, reply(p, r.link.mac))
		if err != nil {
			a.config.Logger.Debug("an answer could not be sent", "address", addr, "link", r.link.name, "err", err)
		} else if sent {
			a.metrics.answers.WithLabelValues(family(addr)).Inc()
		}
	}
}

// send sends a frame about an address that this node still holds.
func (a *Announcer) send(r *reader, addr netip.Addr, frame []byte) (sent bool, err error) {
	sent = a.config.Holder.Answer(addr, func() { err = r.send(frame) })
	return sent && err == nil, err
}

// conflict reports that another machine claims a held address, and repeats this node's claim.
func (a *Announcer) conflict(r *reader, addr netip.Addr, mac net.HardwareAddr) {
	a.metrics.conflicts.WithLabelValues(family(addr)).Inc()
	of, now := addr.String()+mac.String(), time.Now()
	a.mu.Lock()
	last, known := a.told[of]
	report := !known || now.Sub(last) >= conflictEvery
	if report {
		maps.DeleteFunc(a.told, func(_ string, at time.Time) bool { return now.Sub(at) >= conflictEvery })
		a.told[of] = now
	}
	a.mu.Unlock()
	if !report {
		return
	}
	a.config.Logger.Warn("another machine answers for an address that this node holds", "address", addr, "mac", mac,
		"link", r.link.name)
	a.config.Conflict(addr, mac, r.link.name)
	a.say(r, addr)
}

// announce announces a held address on all its links.
func (a *Announcer) announce(addr netip.Addr) {
	a.mu.Lock()
	var on []*reader
	for k, r := range a.open {
		if k.ipv6 == addr.Is6() {
			on = append(on, r)
		}
	}
	a.mu.Unlock()
	all, err := networks()
	if err != nil {
		a.config.Logger.Warn("cannot read this machine's interfaces", "err", err)
		return
	}
	links := linksFor(addr, all, a.config.Own)
	for _, r := range on {
		if slices.ContainsFunc(links, func(l link) bool { return l.index == r.link.index }) {
			a.say(r, addr)
		}
	}
}

func (a *Announcer) say(r *reader, addr netip.Addr) {
	for _, frame := range announcements(addr, r.link.mac) {
		sent, err := a.send(r, addr, frame)
		if err != nil {
			a.config.Logger.Debug("an announcement could not be sent", "address", addr, "link", r.link.name, "err", err)
		} else if sent {
			a.metrics.announced.WithLabelValues(family(addr)).Inc()
		}
	}
}
