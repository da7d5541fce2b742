package token

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"
)

// Kept is the form in which servers of this version keep tokens; gossip.Facts.Tokens has it. 0 is a
// version that keeps them in Secrets.
const Kept = 2

// Peer is a server of the cluster, in the leader's view.
type Peer struct {
	Name  string
	Alive bool
	Kept  int           // the form in which it keeps tokens, as last known
	Gone  time.Duration // since when it is not alive
}

// Keeper is the leader's work on tokens: it ends the time of former tokens, and clears away.
type Keeper struct {
	Store *Store
	// Peers returns the servers that are members of the store.
	Peers  func() []Peer
	Logger *slog.Logger
	// Ended is called with each former token that was removed.
	Ended func(Info)

	swept bool
	tidy  time.Time // of the last look for old tokens
}

const (
	// keepEvery is the pause between two looks. Operators wait for the end of former tokens after
	// an upgrade.
	keepEvery = 5 * time.Second
	// goneAfter is the time after which a dead server of an earlier version is not waited for any
	// more. It restarts in less, and a lost one may never come back.
	goneAfter = 10 * time.Minute
	// tidyEvery is the pause between two looks for tokens that were of no use for showFor.
	tidyEvery = time.Minute
	// showFor is how long `barque token ls` shows a token after its end.
	showFor = 24 * time.Hour
)

// Lead works until ctx ends, in the term of the leader.
func (k *Keeper) Lead(ctx context.Context, term uint64) error {
	k.swept, k.tidy = false, time.Time{}
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	for {
		if err := k.look(ctx, term); err != nil && ctx.Err() == nil {
			k.Logger.Warn("the upkeep of join tokens waits", "retryIn", keepEvery, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (k *Keeper) look(ctx context.Context, term uint64) error {
	count, err := k.Store.FormerCount(ctx)
	if err != nil {
		return err
	}
	if count {
		k.swept = false // also after a restored backup
		if !allKeep(k.Peers()) {
			return nil
		}
		data, err := json.Marshal(map[string]any{"form": Kept, "since": k.Store.Now().UTC().Truncate(time.Second)})
		if err != nil {
			return err
		}
		if won, err := k.Store.Records.Put(ctx, formRecord, data, 0, term); err != nil || !won {
			return err
		}
		k.Logger.Info("join tokens in Secrets do not count any more: all servers keep tokens outside of Secrets")
	}
	if !k.swept {
		if err := k.sweep(ctx); err != nil {
			return err
		}
		k.swept = true
	}
	if now := k.Store.Now(); now.Sub(k.tidy).Abs() >= tidyEvery {
		k.tidy = now
		return k.clear(ctx, now, term)
	}
	return nil
}

// allKeep reports whether no server is of an earlier version, as far as the leader can know.
func allKeep(peers []Peer) bool {
	for _, p := range peers {
		if p.Kept < Kept && (p.Alive || p.Gone < goneAfter) {
			return false
		}
	}
	return len(peers) > 0
}

// sweep removes former tokens: their secrets could be read as long as they were there.
func (k *Keeper) sweep(ctx context.Context) error {
	client, err := k.Store.Client()
	if err != nil {
		return err
	}
	all, err := formerTokens{client}.list(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		if _, err := (formerTokens{client}).delete(ctx, i.ID); err != nil {
			return err
		}
		k.Logger.Info("removed a join token from its Secret; make a new one if it is needed", "tokenID", i.ID, "role",
			i.Role, "description", i.Description)
		k.Ended(i)
	}
	return nil
}

// clear removes the tokens that have been of no use for long.
func (k *Keeper) clear(ctx context.Context, now time.Time, term uint64) error {
	all, err := k.Store.Records.List(ctx, tokensAt)
	if err != nil {
		return err
	}
	for id, data := range all {
		r, err := decode(id, data)
		if err != nil {
			k.Logger.Error("a join token is damaged; delete it", "tokenID", id, "err", err)
			continue
		}
		if now.Sub(r.ended()) <= showFor {
			continue
		}
		_, revision, err := k.Store.Records.Get(ctx, tokensAt+id)
		if err != nil {
			return err
		}
		if _, err := k.Store.Records.Delete(ctx, tokensAt+id, revision, term); err != nil {
			return err
		}
	}
	return nil
}

// ended returns since when the token is of no use; a time far ahead while it is of use.
func (r *record) ended() time.Time {
	end := time.Unix(1<<40, 0)
	if !r.Expires.IsZero() {
		end = r.Expires
	}
	if r.Limited && r.UsesLeft <= 0 {
		last := r.Created // without attempts within AttemptTime
		for _, u := range r.Used {
			last = u.At
		}
		if last.Before(end) {
			end = last
		}
	}
	return end
}
