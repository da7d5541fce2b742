package apps

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func TestValidateControllerRevision(t *testing.T) {
	for name, c := range map[string]struct {
		data     string
		revision int64
		want     []string
	}{
		"good":     {`{"spec":{}}`, 1, nil},
		"negative": {`{}`, -1, []string{grouptest.Invalid + "revision"}},
		"no data":  {"", 0, []string{grouptest.Missing + "data"}},
		"null":     {"null", 0, []string{grouptest.Missing + "data"}},
		"no JSON":  {"{", 0, []string{grouptest.Invalid + "data"}},
		"a list":   {"[]", 0, []string{grouptest.Missing + "data"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := grouptest.Parse[appsv1.ControllerRevision](t, meta)
			r.Revision = c.revision
			if c.data != "" {
				r.Data.Raw = []byte(c.data)
			}
			grouptest.WantErrors(t, validateControllerRevision(context.Background(), r, nil), c.want...)
		})
	}
}

func TestControllerRevisionDataIsImmutable(t *testing.T) {
	old := grouptest.Parse[appsv1.ControllerRevision](t, meta)
	old.Data.Raw = []byte(`{"a":1}`)
	r := old.DeepCopy()
	r.Revision = 7
	grouptest.WantErrors(t, validateControllerRevision(context.Background(), r, old))
	r.Data.Raw = []byte(`{"a":2}`)
	grouptest.WantErrors(t, validateControllerRevision(context.Background(), r, old), grouptest.Invalid+"data")
}

func TestControllerRevisionRow(t *testing.T) {
	kind := controllerRevisions().(*resource.Kind[appsv1.ControllerRevision])
	r := grouptest.Parse[appsv1.ControllerRevision](t, meta+"revision: 3")
	for owner, want := range map[string]string{
		"": "<none>",
		"{apiVersion: apps/v1, kind: StatefulSet}":      "statefulset.apps/web",
		"{apiVersion: v1, kind: ReplicationController}": "replicationcontroller/web",
	} {
		r.OwnerReferences = nil
		if owner != "" {
			parsed := grouptest.Parse[appsv1.ControllerRevision](t,
				"metadata: {ownerReferences: ["+owner+"]}").OwnerReferences[0]
			parsed.Name, parsed.Controller = "web", ptr.To(true)
			r.OwnerReferences = append(r.OwnerReferences, parsed)
		}
		if diff := cmp.Diff([]any{"d", want, int64(3), "<unknown>"}, kind.Row(r, time.Now())); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
