package exchange

import (
	"log/slog"
	"time"
)

// trouble is a step that fails again and again. It is told when that begins, each minute while it goes on, and when it is over:
// errors are not compared, because they may tell times. The zero value is none.
type trouble struct {
	tries       int
	since, told time.Time
	newest      error
}

// failed tells of a try that failed, if it is time to.
func (t *trouble) failed(logger *slog.Logger, err error, step string) {
	now := time.Now()
	if t.tries == 0 {
		t.since = now
	}
	t.tries++
	if t.newest = err; t.tries == 1 || now.Sub(t.told) >= retryMost {
		t.told = now
		logger.Warn("the exchange of the CA cannot go on yet", "step", step, "tries", t.tries, "retryIn", retry, "err", err)
	}
}

// over tells that nothing fails any more, if something did.
func (t *trouble) over(logger *slog.Logger) {
	if t.tries > 0 {
		logger.Info("the exchange of the CA can go on again", "after", time.Since(t.since).Round(time.Millisecond), "tries", t.tries, "newest", t.newest)
		*t = trouble{}
	}
}
