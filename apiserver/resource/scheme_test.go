package resource

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
)

func events() *Kind[corev1.Event] {
	return &Kind[corev1.Event]{
		GroupVersion: corev1.SchemeGroupVersion,
		Name:         "events",
		Singular:     "event",
		List:         &corev1.EventList{},
		Default: func(e *corev1.Event) {
			if e.Type == "" {
				e.Type = corev1.EventTypeNormal
			}
		},
		Fields: func(e *corev1.Event) fields.Set { return fields.Set{"involvedObject.name": e.InvolvedObject.Name} },
		Aliases: []Alias{AliasOf(eventsv1.SchemeGroupVersion, &eventsv1.EventList{},
			func(in *eventsv1.Event, out *corev1.Event) error {
				out.ObjectMeta, out.Message, out.InvolvedObject = in.ObjectMeta, in.Note, in.Regarding
				return nil
			},
			func(in *corev1.Event, out *eventsv1.Event) error {
				out.ObjectMeta, out.Note, out.Regarding = in.ObjectMeta, in.Message, in.InvolvedObject
				return nil
			},
			map[string]string{"regarding.name": "involvedObject.name"})},
	}
}

func TestAliasIsStoredAsItsKind(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := events().AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	internal := schema.GroupVersion{Group: "events.k8s.io", Version: runtime.APIVersionInternal}
	decoder := codecs.UniversalDecoder(internal)

	in := `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"a"},"note":"hello","regarding":{"name":"p"}}`
	obj, err := runtime.Decode(decoder, []byte(in))
	if err != nil {
		t.Fatal(err)
	}
	hub, ok := obj.(*corev1.Event)
	if !ok || hub.Message != "hello" {
		t.Fatalf("decoded %T %+v, want a core Event with the note as message", obj, obj)
	}

	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, eventsv1.SchemeGroupVersion} {
		list := &corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Event{*hub}}
		out, err := scheme.ConvertToVersion(list, gv)
		if err != nil {
			t.Fatalf("to %s: %v", gv, err)
		}
		if got := out.GetObjectKind().GroupVersionKind(); got != gv.WithKind("EventList") {
			t.Errorf("to %s: got kind %s", gv, got)
		}
		if l := out.(metav1.ListInterface); l.GetResourceVersion() != "7" {
			t.Errorf("to %s: resourceVersion %q was lost", gv, l.GetResourceVersion())
		}
	}

	label, _, err := scheme.ConvertFieldLabel(eventsv1.SchemeGroupVersion.WithKind("Event"), "regarding.name", "p")
	if err != nil || label != "involvedObject.name" {
		t.Errorf("field label regarding.name became %q, %v", label, err)
	}
	if _, _, err := scheme.ConvertFieldLabel(corev1.SchemeGroupVersion.WithKind("Event"), "spec.nodeName",
		"p"); err == nil {
		t.Error("an unknown field label was accepted")
	}
}

func TestDefaultsApplyOnDecode(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := events().AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme)
	obj, err := runtime.Decode(codecs.UniversalDecoder(corev1.SchemeGroupVersion),
		[]byte(`{"apiVersion":"v1","kind":"Event"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := obj.(*corev1.Event).Type; got != corev1.EventTypeNormal {
		t.Errorf("type defaulted to %q", got)
	}
}

func TestDeclarationMistakesAreReported(t *testing.T) {
	good := func() *Kind[corev1.Pod] {
		return &Kind[corev1.Pod]{GroupVersion: corev1.SchemeGroupVersion, Name: "pods", Singular: "pod",
			List: &corev1.PodList{}}
	}
	for name, breakIt := range map[string]func(*Kind[corev1.Pod]){
		"no list":             func(k *Kind[corev1.Pod]) { k.List = nil },
		"no name":             func(k *Kind[corev1.Pod]) { k.Name = "" },
		"columns without row": func(k *Kind[corev1.Pod]) { k.Columns = []metav1.TableColumnDefinition{Name()} },
		"index of no field":   func(k *Kind[corev1.Pod]) { k.IndexFields = []string{"spec.nodeName"} },
		"no singular":         func(k *Kind[corev1.Pod]) { k.Singular = "" },
		"no version":          func(k *Kind[corev1.Pod]) { k.GroupVersion.Version = "" },
		"row without columns": func(k *Kind[corev1.Pod]) { k.Row = func(*corev1.Pod, time.Time) []any { return nil } },
	} {
		k := good()
		breakIt(k)
		if err := k.AddToScheme(runtime.NewScheme()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if err := good().AddToScheme(runtime.NewScheme()); err != nil {
		t.Errorf("good declaration: %v", err)
	}
	noStatus := &Kind[corev1.ConfigMap]{GroupVersion: corev1.SchemeGroupVersion, Name: "configmaps",
		Singular: "configmap", List: &corev1.ConfigMapList{}, Status: &Status[corev1.ConfigMap]{}}
	if err := noStatus.AddToScheme(runtime.NewScheme()); err == nil {
		t.Error("a status subresource without a Status field was accepted")
	}
}

func TestStrategyKeepsStatusAndGeneration(t *testing.T) {
	kind := &Kind[corev1.Pod]{Generation: true, Status: &Status[corev1.Pod]{}}
	s := strategy[corev1.Pod]{kind: kind}
	ctx := context.Background()

	created := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	s.PrepareForCreate(ctx, created)
	if created.Status.Phase != "" || created.Generation != 1 {
		t.Errorf("create left phase %q, generation %d", created.Status.Phase, created.Generation)
	}

	old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Generation: 3}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
	for _, c := range []struct {
		name   string
		change func(*corev1.Pod)
		want   int64
	}{
		{"labels only", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, 3},
		{"status only", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, 3},
		{"spec", func(p *corev1.Pod) { p.Spec.NodeName = "n" }, 4},
	} {
		obj := old.DeepCopy()
		c.change(obj)
		s.PrepareForUpdate(ctx, obj, old)
		if obj.Generation != c.want || obj.Status.Phase != corev1.PodPending {
			t.Errorf("%s: generation %d (want %d), phase %q", c.name, obj.Generation, c.want, obj.Status.Phase)
		}
	}

	obj := old.DeepCopy()
	obj.Spec.NodeName, obj.Status.Phase = "n", corev1.PodRunning
	statusStrategy[corev1.Pod]{s}.PrepareForUpdate(ctx, obj, old)
	if obj.Spec.NodeName != "" || obj.Status.Phase != corev1.PodRunning {
		t.Errorf("status write: node %q, phase %q", obj.Spec.NodeName, obj.Status.Phase)
	}
	reset := statusStrategy[corev1.Pod]{
		strategy[corev1.Pod]{
			kind: &Kind[corev1.Pod]{GroupVersion: corev1.SchemeGroupVersion,
				Status: &Status[corev1.Pod]{}}}}.GetResetFields()
	if set := reset["v1"]; set == nil || !set.Has(fieldpath.MakePathOrDie("spec")) ||
		set.Has(fieldpath.MakePathOrDie("status")) {
		t.Errorf("status resets %v", set)
	}
}

func TestTableOfAList(t *testing.T) {
	kind := &Kind[corev1.Pod]{Name: "pods",
		Columns: []metav1.TableColumnDefinition{Name(), WideColumn("Node", "string", "Where it runs.")},
		Row:     func(p *corev1.Pod, _ time.Time) []any { return []any{p.Name, p.Spec.NodeName} },
	}
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "5", Continue: "c"},
		Items: []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a"}}}}
	table, err := kind.tables(nil).ConvertToTable(context.Background(), list, nil)
	if err != nil {
		t.Fatal(err)
	}
	if table.ResourceVersion != "5" || table.Continue != "c" || len(table.Rows) != 1 || table.Rows[0].Cells[0] != "a" ||
		len(table.ColumnDefinitions) != 2 {
		t.Errorf("got %+v", table)
	}
	bare, err := kind.tables(nil).ConvertToTable(context.Background(), &list.Items[0],
		&metav1.TableOptions{NoHeaders: true})
	if err != nil || len(bare.ColumnDefinitions) != 0 || len(bare.Rows) != 1 {
		t.Errorf("without headers: %+v, %v", bare, err)
	}
}
