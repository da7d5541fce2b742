package raftstore_test

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestServerSaysThatThereIsNoQuorum stops two of three servers. The third must say what is missing, and
// must not fill the disk with saying so.
func TestServerSaysThatThereIsNoQuorum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log syncbuf.Buffer
		c := storetest.NewCluster(t, 3, func(i int, cfg *raftstore.Config) {
			if i == 2 {
				cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
			}
		})
		c.Stop(0)
		c.Stop(1)
		<-time.After(10 * time.Minute)
		text := log.String()
		if !strings.Contains(text, "1 of 3 servers answer and 2 are needed") || !strings.Contains(text, "s1 (s1:6444)") {
			t.Errorf("it does not say what is missing:\n%s", text)
		}
		if n := strings.Count(text, "\n"); n > 600 {
			t.Errorf("%d lines in 10 minutes", n)
		}
	})
}
