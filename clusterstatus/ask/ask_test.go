package ask

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
)

// TestNobodyAnswersIsNoCircle: where `cluster status` is refused, the advice is not to ask for it.
func TestNobodyAnswersIsNoCircle(t *testing.T) {
	away := &net.OpError{Op: "dial", Err: errors.New("no route")}
	for _, errs := range [][]error{{&remote.RefusalError{Status: http.StatusServiceUnavailable, Reason: "not ready"}},
		{&remote.RefusalError{Status: http.StatusInternalServerError, Reason: "broken"}, away,
			&remote.NoAnswerError{Within: time.Second}}} {
		if err := nobodyAnswers(new(rest.Config), errs, new(Heard)); strings.Contains(err.Error(), "cluster status") ||
			!errors.Is(err, errs[0]) {
			t.Error(err)
		}
	}
	if err := nobodyAnswers(new(rest.Config),
		[]error{&remote.RefusalError{Status: http.StatusForbidden, Reason: "you may not"}, away},
		new(Heard)); !strings.Contains(err.Error(), "ask an administrator") {
		t.Error(err)
	}
}
