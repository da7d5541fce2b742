package admissions

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"strings"
	"time"
)

const (
	// publishAgain is the pause before another try to record a key. There may be no quorum.
	publishAgain = 5 * time.Second
	// forgetEvery is the pause between two looks for members that are no more.
	forgetEvery = time.Minute
	// forgetAfter is the age of an admission after which its machine has its Node, if ever.
	forgetAfter = time.Hour
)

// PublishAll records each certificate of this server, until ctx ends. renewed returns a channel
// that is closed at the next renewal.
func (b *Book) PublishAll(ctx context.Context, own func() *x509.Certificate, renewed func() <-chan struct{}) error {
	for {
		next, again := renewed(), (<-chan time.Time)(nil)
		if err := b.Publish(ctx, own()); err != nil && ctx.Err() == nil {
			b.Logger.Warn("the other servers give this one no shared keys until its key is recorded", "retryIn",
				publishAgain, "err", err)
			again = time.After(publishAgain)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		case <-again:
		}
	}
}

// Forget drops the records of machines that are no members any more, in the term of the leader.
// named returns the names of all Nodes, once they are synced.
func (b *Book) Forget(ctx context.Context, term uint64, named func() (names []string, known bool)) error {
	ticker := time.NewTicker(forgetEvery)
	defer ticker.Stop()
	for {
		if err := b.forget(ctx, term, named); err != nil && ctx.Err() == nil {
			b.Logger.Warn("records of former members are kept for now", "retryIn", forgetEvery, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (b *Book) forget(ctx context.Context, term uint64, named func() ([]string, bool)) error {
	nodes, known := named()
	if !known {
		return nil
	}
	is := map[string]bool{}
	for _, name := range nodes {
		is[name] = true
	}
	records, err := b.names(ctx)
	if err != nil {
		return err
	}
	for _, record := range records {
		_, name, _ := strings.Cut(record, "/")
		joined := strings.HasPrefix(record, joinedAt)
		if b.IsServer(name) || joined && is[name] {
			continue
		}
		data, revision, err := b.Records.Get(ctx, record)
		if err != nil {
			return err
		}
		var a Admission
		if joined && json.Unmarshal(data, &a) == nil && b.Now().Sub(a.At) < forgetAfter {
			continue
		}
		if _, err := b.Records.Delete(ctx, record, revision, term); err != nil {
			return err
		}
	}
	return nil
}
