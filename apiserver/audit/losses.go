package audit

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// errStrangers is the reason for the loss of events of callers without an identity beyond their
// limit.
var errStrangers = errors.New("there are too many requests without an identity")

// Loss describes the events that one sink has lost since this server was started.
type Loss struct {
	Sink   string // log, webhook, limit for that of callers without an identity, or nodes for those of refused nodes
	Target string // the path of the file or of the webhook's kubeconfig
	Events uint64
	Last   time.Time
	Reason string // of the last one
}

// losses counts the events that a sink loses, and logs them now and then.
type losses struct {
	sink, target string
	logger       *slog.Logger

	mu     sync.Mutex
	all    Loss
	logged time.Time
	before uint64 // events that were lost before the last log line
}

// sayAgain is the interval of log lines on the losses of one sink.
const sayAgain = time.Minute

func newLosses(sink, target string, logger *slog.Logger) *losses {
	return &losses{sink: sink, target: target, logger: logger}
}

// lost counts events.
func (l *losses) lost(err error, events ...*auditinternal.Event) {
	// This counts in apiserver_audit_error_total. Its own log lines, one per event, are details.
	audit.HandlePluginError(l.sink, err, events...)
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all.Events += uint64(len(events))
	l.all.Last, l.all.Reason = now, err.Error()
	if now.Sub(l.logged) < sayAgain {
		return
	}
	l.logger.Warn("audit events are lost", "sink", l.sink, "target", l.target, "lost", l.all.Events-l.before, "err",
		err)
	l.logged, l.before = now, l.all.Events
}

func (l *losses) loss() Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	all.Sink, all.Target = l.sink, l.target
	return all
}

// Losses returns the sinks that have lost events.
func (l *Log) Losses() []Loss {
	var out []Loss
	add := func(of *losses) {
		if one := of.loss(); one.Events > 0 {
			out = append(out, one)
		}
	}
	for _, s := range l.sinks {
		add(s.losses)
	}
	if l.stranger != nil {
		add(l.stranger)
	}
	if l.refusals != nil {
		add(l.refusals.node)
	}
	return out
}
