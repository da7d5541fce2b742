package node

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/barque/barque/membership/acts"
)

// acted waits until the audit logs of the servers have these acts, in whatever order, and no others
// with the value in the annotation.
func acted(t *testing.T, all []*process, annotation, of string, wanted ...string) {
	t.Helper()
	until(t, patience, "the acts in the audit logs", func(context.Context) error {
		var got []string
		for _, p := range all {
			found, err := p.acts(annotation, of)
			if err != nil {
				return err
			}
			for _, e := range found {
				got = append(got, e.User.Username+": "+acts.Text(e.Annotations))
			}
		}
		slices.Sort(got)
		slices.Sort(wanted)
		if !slices.Equal(got, wanted) {
			return fmt.Errorf("they have %q, want %q", got, wanted)
		}
		return nil
	})
}

// acts returns the events in the server's audit log that have the value in an annotation.
func (p *process) acts(annotation, value string) (found []auditv1.Event, err error) {
	file, err := os.Open(auditFile(p.order.DataDir))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e auditv1.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Annotations[annotation] == value {
			found = append(found, e)
		}
	}
	return found, lines.Err()
}
