package syncbuf

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// TestBuffer: concurrent writes are all kept, each whole, beside concurrent reads.
func TestBuffer(t *testing.T) {
	var b Buffer
	var writing sync.WaitGroup
	for i := range 10 {
		writing.Go(func() {
			for range 100 {
				fmt.Fprintf(&b, "piece %d\n", i)
				if s := b.String(); !strings.HasSuffix(s, "\n") {
					t.Errorf("a piece is torn: %q", s)
				}
			}
		})
	}
	writing.Wait()
	for i := range 10 {
		if n := strings.Count(b.String(), fmt.Sprintf("piece %d\n", i)); n != 100 {
			t.Errorf("%d pieces of writer %d", n, i)
		}
	}
}
