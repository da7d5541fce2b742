package trouble

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestItIsToldAtFirstAndEachMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var step Trouble
		if past, was := step.Over(); was {
			t.Errorf("before anything failed: %+v", past)
		}
		for range 2 { // the second one begins anew
			began, newest := time.Now(), error(nil)
			told := 0
			for try := 1; try <= 91; try++ { // three minutes, and the moment at their end
				newest = errors.New("no")
				tries, tell := step.Failed(newest)
				if tries != try {
					t.Fatalf("try %d is counted as %d", try, tries)
				}
				if tell {
					told++
				}
				time.Sleep(2 * time.Second)
			}
			if told != 4 {
				t.Errorf("told %d times in three minutes", told)
			}
			if past, was := step.Over(); !was || !past.Since.Equal(began) || past.Tries != 91 ||
				!errors.Is(past.Newest, newest) {
				t.Errorf("it was %+v, %t", past, was)
			}
		}
	})
}
