package gossip

import (
	"bytes"
	"fmt"
	"log"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/loglimit"
)

// TestLinesAgain: a line that memberlist repeats is logged once in a while, at any port; other
// lines are logged, and a flood of forged sources is bounded.
func TestLinesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		lines := &lineLogger{logger: slog.New(slog.NewTextHandler(&out, nil))}
		memberlist := log.New(lines, "", 0)
		attempt := func(from string) {
			memberlist.Printf("[ERR] memberlist: discarding stream with unacceptable label %q: from=%s", "barque:OLD",
				from)
		}
		told := func() int {
			defer out.Reset()
			return strings.Count(out.String(), "\n")
		}
		for port := range 100 {
			attempt(fmt.Sprintf("10.0.0.1:%d", 40000+port))
			time.Sleep(sameLineAgain / 200)
		}
		if n := told(); n != 1 {
			t.Errorf("a node that tries a hundred times was logged %d times", n)
		}
		attempt("10.0.0.2:40000")
		memberlist.Print("[WARN] memberlist: something else")
		memberlist.Print("[DEBUG] memberlist: nothing")
		if n := told(); n != 2 {
			t.Errorf("%d lines of two new ones", n)
		}
		time.Sleep(sameLineAgain)
		attempt("10.0.0.1:1")
		if n := told(); n != 1 {
			t.Errorf("after a while it was told %d times", n)
		}
		for i := range 10 * mostLines {
			attempt(fmt.Sprintf("10.1.%d.%d:1", i/256, i%256))
		}
		if n := told(); n == 0 || n > loglimit.Burst || len(lines.told) > mostLines {
			t.Errorf("%d lines of %d forged sources, %d remembered", n, 10*mostLines, len(lines.told))
		}
		memberlist.Print("[WARN] memberlist: another cause")
		if n := told(); n != 1 {
			t.Errorf("%d lines of another cause during a flood", n)
		}
		time.Sleep(loglimit.Pause)
		memberlist.Printf("[ERR] memberlist: discarding stream with unacceptable label %q: from=%s", "barque:OLD",
			"10.9.9.9:1")
		if text := out.String(); !strings.Contains(text, "othersNotLogged=25") /* of 2560 */ {
			t.Errorf("after the flood: %s", text)
		}
	})
}
