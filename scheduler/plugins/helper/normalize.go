package helper

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// normalize stretches the scores so that the greatest becomes MaxScore; reverse makes the lowest
// raw score the best.
func normalize(scores fwk.NodeScoreList, reverse bool) *fwk.Status {
	var most int64
	for _, s := range scores {
		most = max(most, s.Score)
	}
	for i := range scores {
		switch s := &scores[i].Score; {
		case most > 0 && reverse:
			*s = fwk.MaxScore - *s*fwk.MaxScore/most
		case most > 0:
			*s = *s * fwk.MaxScore / most
		case reverse:
			*s = fwk.MaxScore
		}
	}
	return nil
}

// Ascending normalises scores of which more is better; it is the ScoreExtensions of a plugin.
type Ascending struct{}

// NormalizeScore implements fwk.ScoreExtensions.
func (Ascending) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, s fwk.NodeScoreList) *fwk.Status {
	return normalize(s, false)
}

// Descending normalises scores of which less is better.
type Descending struct{}

// NormalizeScore implements fwk.ScoreExtensions.
func (Descending) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, s fwk.NodeScoreList) *fwk.Status {
	return normalize(s, true)
}
