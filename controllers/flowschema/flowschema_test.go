package flowschema

import (
	"testing"
	"testing/synctest"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/controllers/controllertest"
)

func newSchema(level string) *flowcontrolv1.FlowSchema {
	s := &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	s.Spec.PriorityLevelConfiguration.Name = level
	return s
}

func TestDecide(t *testing.T) {
	first, later := metav1.NewTime(time.Unix(1, 0)), metav1.NewTime(time.Unix(2, 0))
	for _, c := range []struct {
		level  string
		exists bool
		want   flowcontrolv1.ConditionStatus
	}{{"l", true, "False"}, {"l", false, "True"}, {"exempt", false, "False"}, {"catch-all", false, "False"}} {
		got, changed := decide(newSchema(c.level), c.exists, first)
		if !changed || len(got.Status.Conditions) != 1 || got.Status.Conditions[0].Status != c.want {
			t.Errorf("%s, exists %v: %+v", c.level, c.exists, got.Status.Conditions)
		}
		if _, again := decide(got, c.exists, later); again {
			t.Errorf("%s, exists %v: written twice", c.level, c.exists)
		}
	}
	found, _ := decide(newSchema("l"), true, first)
	found.Spec.PriorityLevelConfiguration.Name = "m"
	if other, changed := decide(found, true, later); !changed || !other.Status.Conditions[0].LastTransitionTime.Equal(&first) {
		t.Errorf("another level: %+v", other.Status.Conditions)
	}
	if gone, changed := decide(found, false, later); !changed || !gone.Status.Conditions[0].LastTransitionTime.Equal(&later) {
		t.Errorf("no level: %+v", gone.Status.Conditions)
	}
}

func TestFollowsTheLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, newSchema("l"))
		ctrl, err := New(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		v1 := c.Client.FlowcontrolV1()
		dangles := func(want flowcontrolv1.ConditionStatus) func() bool {
			return func() bool {
				is, err := v1.FlowSchemas().Get(t.Context(), "s", metav1.GetOptions{})
				return err == nil && len(is.Status.Conditions) == 1 && is.Status.Conditions[0].Status == want
			}
		}
		controllertest.Eventually(t, "it dangles", dangles("True"))
		level := &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "l"}}
		if _, err := v1.PriorityLevelConfigurations().Create(t.Context(), level, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it does not dangle", dangles("False"))
		if err := v1.PriorityLevelConfigurations().Delete(t.Context(), "l", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "it dangles again", dangles("True"))
		c.Client.ClearActions()
		<-time.After(time.Hour)
		for _, a := range c.Client.Actions() {
			if a.GetVerb() == "update" {
				t.Errorf("%s although nothing happens", a.GetVerb())
			}
		}
	})
}
