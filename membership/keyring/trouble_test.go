package keyring

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/shelftest"
)

// refusing is a store that cannot be written while refuses is set.
type refusing struct {
	Store
	mu      sync.Mutex
	refuses error
	puts    int
}

func (r *refusing) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuses = err
}

func (r *refusing) Put(ctx context.Context, value []byte, revision, term uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.puts++; r.refuses != nil {
		return r.refuses
	}
	return r.Store.Put(ctx, value, revision, term)
}

// plain is a Sealer that does not.
type plain struct{}

func (plain) Seal(_ string, data, _ []byte) ([]byte, error) { return data, nil }
func (plain) Open(_ string, data, _ []byte) ([]byte, error) { return data, nil }

// What is tried every few seconds, and fails for minutes as on a full disk, is said when it begins,
// now and then, and when it is over.
func TestAFailingRotationIsSaidNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		none := func(Ring) error { return nil }
		shelf := shelftest.New(ErrConflict)
		store := &refusing{Store: shelf, refuses: errors.New("the store is full")}
		m := New(Config{ClusterID: "c", Store: store, Own: NewOwn(ringOf(3), none, none), Sealer: plain{}, // newer than the store's: to be repaired
			Members: func() []Member { return nil }, Changed: func() <-chan struct{} { return nil }, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		term := shelf.Elect()
		running.Go(func() {
			if err := m.Drive(ctx, term); err != nil {
				t.Error(err)
			}
		})
		after(5*time.Minute - time.Second)
		store.mu.Lock()
		puts := store.puts
		store.mu.Unlock()
		if said := strings.Count(log.String(), "does not go on"); said != 5 || puts < 50 {
			t.Errorf("it has failed %d times in five minutes, and was said %d times:\n%s", puts, said, log.String())
		}
		store.set(nil)
		after(retryEvery)
		if said := strings.Count(log.String(), "goes on again"); said != 1 {
			t.Errorf("its end was said %d times:\n%s", said, log.String())
		}
		cancel()
		running.Wait()
	})
}
