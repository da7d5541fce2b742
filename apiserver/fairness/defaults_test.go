package fairness

import (
	"context"
	"slices"
	"testing"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

const annotation = flowcontrolv1.AutoUpdateAnnotationKey

func TestDecideSchema(t *testing.T) {
	suggested, mandatory := bootstrap.SuggestedFlowSchemaProbes, bootstrap.MandatoryFlowSchemaExempt
	of := defaults[flowcontrolv1.FlowSchema, *flowcontrolv1.FlowSchema]{
		[]*flowcontrolv1.FlowSchema{mandatory}, []*flowcontrolv1.FlowSchema{suggested}, adoptSchema,
	}
	own := suggested.Spec.DeepCopy()
	own.MatchingPrecedence = 77
	names := func(list []*flowcontrolv1.FlowSchema) (out []string) {
		for _, o := range list {
			out = append(out, o.Name)
		}
		return out
	}
	if todo := decide(nil, of); !slices.Equal(names(todo.create), []string{"exempt", "probes"}) || todo.update != nil ||
		todo.remove != nil {
		t.Errorf("of nothing: %+v", todo)
	}
	for name, c := range map[string]struct {
		of         *flowcontrolv1.FlowSchema
		said       string // the annotation; "" is none
		generation int64
		own        bool // has a spec of its own

		said2, kept string // "" if unchanged: the annotation and whose spec it has then
	}{
		"as suggested":            {suggested, "true", 1, false, "", ""},
		"suggested otherwise":     {suggested, "true", 3, true, "true", "default"},
		"somebody's own":          {suggested, "false", 1, true, "", ""},
		"somebody's, the same":    {suggested, "false", 1, false, "", ""},
		"new, without annotation": {suggested, "", 1, true, "true", "default"},
		"changed, without it":     {suggested, "", 2, true, "false", "own"},
		"no boolean":              {suggested, "perhaps", 2, true, "false", "own"},
		"mandatory":               {mandatory, "true", 2, false, "", ""},
		"mandatory, changed":      {mandatory, "false", 2, true, "true", "default"},
	} {
		t.Run(name, func(t *testing.T) {
			is := c.of.DeepCopy()
			is.Generation, is.Annotations = c.generation, map[string]string{"another": "one"}
			if c.said != "" {
				is.Annotations[annotation] = c.said
			}
			if c.own {
				is.Spec = *own.DeepCopy()
			}
			before := is.DeepCopy()
			todo := decide([]*flowcontrolv1.FlowSchema{is}, of)
			if len(todo.create) != 1 || todo.create[0].Name == is.Name || todo.remove != nil {
				t.Errorf("plan %+v", todo)
			}
			if is.Annotations[annotation] != before.Annotations[annotation] ||
				is.Spec.MatchingPrecedence != before.Spec.MatchingPrecedence {
				t.Error("what the informer has was changed")
			}
			if c.said2 == "" {
				if todo.update != nil {
					t.Errorf("it is to be written: %+v", todo.update)
				}
				return
			}
			if len(todo.update) != 1 {
				t.Fatal("it is not to be written")
			}
			next := todo.update[0]
			want := map[string]int32{"default": c.of.Spec.MatchingPrecedence, "own": 77}[c.kept]
			if next.Annotations[annotation] != c.said2 || next.Annotations["another"] != "one" ||
				next.Spec.MatchingPrecedence != want {
				t.Errorf("annotations %v, precedence %d; want %q, %d", next.Annotations, next.Spec.MatchingPrecedence,
					c.said2, want)
			}
			if again := decide([]*flowcontrolv1.FlowSchema{next}, of); again.update != nil {
				t.Errorf("and once more: %+v", again.update)
			}
		})
	}
}

// A default of another version is removed; an object that users made or changed stays.
func TestDecideRemoves(t *testing.T) {
	var is []*flowcontrolv1.PriorityLevelConfiguration
	for name, said := range map[string]string{"gone": "true", "kept": "false", "odd": "x"} {
		is = append(is,
			&flowcontrolv1.PriorityLevelConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{annotation: said}}})
	}
	is = append(is, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "users"}})
	todo := decide(is, levelDefaults)
	if len(todo.remove) != 1 || todo.remove[0].Name != "gone" || todo.update != nil {
		t.Errorf("plan %+v", todo)
	}
}

// The owner may set how much exempt requests hold back, and nothing else of a mandatory level.
func TestExemptLevel(t *testing.T) {
	is := bootstrap.MandatoryPriorityLevelConfigurationExempt.DeepCopy()
	is.Spec.Exempt.NominalConcurrencyShares = ptr.To[int32](20)
	if adoptLevel(is, bootstrap.MandatoryPriorityLevelConfigurationExempt) {
		t.Error("the shares of the exempt level were put back")
	}
	is.Spec.Exempt = nil
	if !adoptLevel(is, bootstrap.MandatoryPriorityLevelConfigurationExempt) ||
		*is.Spec.Exempt.NominalConcurrencyShares != 0 {
		t.Errorf("an exempt level without its field: %+v", is.Spec)
	}
	is = bootstrap.MandatoryPriorityLevelConfigurationCatchAll.DeepCopy()
	is.Spec.Limited.NominalConcurrencyShares = ptr.To[int32](20)
	if !adoptLevel(is, bootstrap.MandatoryPriorityLevelConfigurationCatchAll) ||
		*is.Spec.Limited.NominalConcurrencyShares != 5 {
		t.Errorf("the catch-all level: %+v", is.Spec.Limited)
	}
}

// All is created, and then nothing is written.
func TestEnsure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	v1 := factory.Flowcontrol().V1()
	levels, schemas := v1.PriorityLevelConfigurations().Informer(), v1.FlowSchemas().Informer()
	if err := Ensure(ctx, client, factory); err != nil { // the informers know nothing yet
		t.Fatal(err)
	}
	if err := Ensure(ctx, client, factory); err != nil { // nor that all is there
		t.Fatal(err)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	factory.WaitForCacheSync(ctx.Done())
	if l, s := len(levels.GetStore().List()), len(schemas.GetStore().List()); l != 8 || s != 12 {
		t.Errorf("%d levels and %d schemas", l, s)
	}
	client.ClearActions()
	if err := Ensure(ctx, client, factory); err != nil {
		t.Fatal(err)
	}
	if did := client.Actions(); len(did) > 0 {
		t.Errorf("there was nothing to do: %v", did)
	}
}

// TestAnEarlierLeader: it removes the schema of servers, which it does not know. The next leader of
// this version has it again, and touches nothing else.
func TestAnEarlierLeader(t *testing.T) {
	earlier := schemaDefaults
	earlier.suggested = bootstrap.SuggestedFlowSchemas
	is := decide(nil, schemaDefaults).create
	todo := decide(is, earlier)
	if len(todo.remove) != 1 || todo.remove[0].Name != serversSchema.Name || todo.create != nil || todo.update != nil {
		t.Fatalf("the earlier leader's plan: %+v", todo)
	}
	left := slices.DeleteFunc(is, func(s *flowcontrolv1.FlowSchema) bool { return s.Name == serversSchema.Name })
	todo = decide(left, schemaDefaults)
	if len(todo.create) != 1 || todo.create[0].Name != serversSchema.Name || todo.remove != nil || todo.update != nil {
		t.Errorf("the next leader's plan: %+v", todo)
	}
}
