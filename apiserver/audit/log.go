package audit

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/apiserver/pkg/authentication/user"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"
)

// Log sends events to the sinks. It implements upstream's audit.Backend.
type Log struct {
	// Policy decides how much of a request is recorded.
	Policy audit.PolicyRuleEvaluator
	// File is the path of the file; "" without one, or if it is standard output.
	File string
	// Stdout is set if events go to standard output.
	Stdout bool
	sinks  []*sink
	// strangers limits the events of callers without an identity. Without it they could fill the
	// file until it has nothing else. nil is no limit.
	strangers *limit
	stranger  *losses
	// refusals has events of nodes' requests in case of a refusal; nil with a policy file, which
	// alone decides then.
	refusals *refusals
}

// The events a second that callers without an identity may cause together, and how many at once.
const (
	strangersRate  = 10
	strangersBurst = 200
)

// sink is one target with its queue.
type sink struct {
	*losses
	audit.Sink            // the first part of the way
	acts       audit.Sink // the same for acts of the server itself; it never waits
	queue      *queue     // in a blocking one for acts alone
}

// waitingActs is how many acts wait for a blocking sink at most.
const waitingActs = 1000

// senders of the webhook: so many batches may be on their way at once.
const hookSenders = 8

// New opens the sinks of the options. defaultPath is the path of the file, if the options have
// none. Nothing is sent before Run.
func New(o *Options, defaultPath string, logger *slog.Logger) (*Log, error) {
	rules, err := readPolicy(o.PolicyFile)
	if err != nil {
		return nil, err
	}
	l := &Log{Policy: policy.NewPolicyRuleEvaluator(rules)}
	if o.PolicyFile == "" {
		l.refusals = newRefusals(l.Policy, logger)
		l.Policy = l.refusals
		l.strangers = newLimit(strangersRate, strangersBurst)
		l.stranger = newLosses("limit", "callers without an identity", logger)
	}
	if path := o.Path(defaultPath); path != "" {
		out, err := openFile(path, &o.LogOptions)
		if err != nil {
			return nil, err
		}
		if l.Stdout = path == "-"; !l.Stdout {
			l.File = path
		}
		version, err := schema.ParseGroupVersion(o.LogOptions.GroupVersionString)
		if err != nil {
			return nil, fmt.Errorf("--audit-log-version: %w", err)
		}
		l.add(newFile(out, o.LogOptions.Format, version), 1, newLosses("log", path, logger), o.LogOptions.BatchOptions,
			o.LogOptions.TruncateOptions, version)
	}
	if path := o.WebhookOptions.ConfigFile; path != "" {
		version, err := schema.ParseGroupVersion(o.WebhookOptions.GroupVersionString)
		if err != nil {
			return nil, fmt.Errorf("--audit-webhook-version: %w", err)
		}
		h, err := newHook(path, version, o.WebhookOptions.InitialBackoff)
		if err != nil {
			return nil, err
		}
		l.add(h, hookSenders, newLosses("webhook", path, logger), o.WebhookOptions.BatchOptions,
			o.WebhookOptions.TruncateOptions, version)
	}
	return l, nil
}

// add adds a sink.
func (l *Log) add(
	to target, senders int, lost *losses, batch genericoptions.AuditBatchOptions,
	cut genericoptions.AuditTruncateOptions, version schema.GroupVersion,
) {
	s := &sink{losses: lost}
	cutting := func(next audit.Sink) audit.Sink {
		if cut.Enabled {
			return truncate.NewBackend(backend{next}, cut.TruncateConfig, version)
		}
		return next
	}
	switch batch.Mode {
	case genericoptions.ModeBatch:
		s.queue = newQueue(to, batch.BatchConfig, senders, lost.lost)
		s.Sink = cutting(adder(s.queue.add))
		s.acts = s.Sink
	default:
		s.queue = newQueue(to, buffered.BatchConfig{BufferSize: waitingActs, MaxBatchSize: 1}, 1, lost.lost)
		s.acts = cutting(adder(s.queue.add))
		strict := batch.Mode == genericoptions.ModeBlockingStrict
		s.Sink = cutting(adder(func(events ...*auditinternal.Event) bool {
			err := to.send(context.Background(), events)
			if err != nil {
				lost.lost(err, events...)
			}
			return err == nil || !strict
		}))
	}
	l.sinks = append(l.sinks, s)
}

// adder makes a sink of a function.
type adder func(events ...*auditinternal.Event) bool

// ProcessEvents implements audit.Sink.
func (f adder) ProcessEvents(events ...*auditinternal.Event) bool { return f(events...) }

// backend makes a backend of a sink that has another owner.
type backend struct{ audit.Sink }

func (backend) Run(<-chan struct{}) error { return nil }
func (backend) Shutdown()                 {}
func (backend) String() string            { return "barque" }

// Enabled reports whether there is any sink.
func (l *Log) Enabled() bool { return len(l.sinks) > 0 }

// Backend returns the Log for an API server. The server's end does not stop it.
func (l *Log) Backend() audit.Backend { return backend{l} }

// ProcessEvents implements audit.Sink.
func (l *Log) ProcessEvents(events ...*auditinternal.Event) bool {
	ok := true
	for _, e := range events {
		whole := e
		e = bounded(e)
		if l.refusals != nil && l.refusals.drops(whole, e) {
			continue
		}
		if l.strangers != nil && strange(e) && !l.strangers.takes(e) {
			l.stranger.lost(errStrangers, e)
			continue
		}
		for _, s := range l.sinks {
			ok = s.ProcessEvents(e) && ok
		}
	}
	return ok
}

// strange reports whether the caller of a request has no identity.
func strange(e *auditinternal.Event) bool {
	return e.User.Username == "" || e.User.Username == user.Anonymous
}

// Run sends events until ctx ends, and then those that wait.
func (l *Log) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, s := range l.sinks {
		running.Go(func() { s.queue.run(ctx) })
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// StopTimeout is longer than any flush.
const StopTimeout = flushTimeout + 5*time.Second
