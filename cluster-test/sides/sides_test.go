package sides

import (
	"testing"
	"time"
)

func TestParseCPU(t *testing.T) {
	u, err := parseCPU([]byte("7 (a) b c) S 1 2 3 4 5 6 7 8 9 10 150 50 13 14"))
	if err != nil || u.CPU != 2*time.Second || u.Children != 270*time.Millisecond {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := parseCPU([]byte("7 (a) S 1")); err == nil {
		t.Error("what is short was read")
	}
}
