"""Failures: how often a run is interrupted, from what it has lived through and from what others have.

The rate is one for each hour of each device (GPU), so that a run which resumes on more devices keeps what it knows.
It is a Gamma-Poisson estimate: failures come at random with a rate nobody knows, the prior says which rates are likely,
hours and failures sharpen it.  What minimises the expected loss is the mean of the rate, and that is what is returned.

*The prior* has the mean that Llama 3 had on 16 384 GPUs (419 unexpected interruptions in 54 days; arXiv 2407.21783,
3.3.4): 50 700 hours of a GPU.  That is hardware.  A single GPU on a spot market fails a thousand times as often, so the
prior is a mixture: a tenth of the weight says "ten times worse", a hundredth "a hundred times", and so on.  After two
quick failures the estimate follows them; without any it goes to the hardware's rate and below, and never to zero.

*Forgetting* is by failures, not by hours: each makes all that was before count a fiftieth less, and a short memory,
three tenths less.  A window in hours would hold thousands of failures of one run and none of another.

*Heaps.* After a failure the next one is likelier, and less so as time goes on: machines in use fail as a Weibull
distribution of shape 0.7 to 0.8 says (Schroeder and Gibson 2010).  Each gap between failures is evidence for that or
for failures without memory; `ageing` is what follows for the rate, from a start in the middle.

    >>> round(1 / FailureRate().per_hour(devices=16_384), 1)
    3.1
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp, gamma, log, sqrt

PRIOR_HOURS = 54 * 24 * 16_384 / 419  # of one GPU for each failure: 50 700
WORST_HOURS = 0.1  # of a whole run for each failure: the prior goes from the hardware's rate to about this
KEPT = 1 - 1 / 50  # of what is known, at each failure; the estimate is then good to 10 %, which costs 0.1 % of waste
KEPT_RECENTLY = 0.7  # 0.6 and 0.8 waste more, steady and after a change; so do 1.2 of doubt
SHAPE = 0.7  # of the Weibull distribution of gaps, if failures come in heaps
STRETCH = gamma(1 + 1 / SHAPE)  # its mean over its scale
STEADY = (SHAPE * STRETCH**SHAPE) ** (1 / (1 - SHAPE))  # means after a failure, its rate is down to the average: 0.53
DOUBT = 1.0  # standard deviations by which the short memory must be sure, or it would shorten intervals for nothing


@dataclass(frozen=True, slots=True)
class FailureRate:
    """What is known of the failures of a run; updated by functions that return another.

    Attributes:
        count: failures, older ones counting less.
        hours: hours of devices without one, forgotten at the same pace.
        recent, recent_hours: the same with a short memory.
        evidence: log odds that failures come in heaps, forgotten as `count` is.
    """

    count: float = 0.0
    hours: float = 0.0
    recent: float = 0.0
    recent_hours: float = 0.0
    evidence: float = 0.0

    def ran(self, hours: float) -> "FailureRate":
        """Return what is known after so many more hours of one device without a failure."""
        return FailureRate(self.count, self.hours + hours, self.recent, self.recent_hours + hours, self.evidence)

    def failed(self, gap_hours: float | None = None) -> "FailureRate":
        """Return what is known after a failure, whose hours `ran` has counted before.

        Args:
            gap_hours: hours of devices since the failure before; None where there was none.
        """
        known = gap_hours is not None and self.count > 2 and self.hours > 0
        gap = max((gap_hours or 0.0) * self.count / self.hours, 1e-3) if known else 1.0
        return FailureRate(
            (self.count + 1) * KEPT,
            self.hours * KEPT,
            (self.recent + 1) * KEPT_RECENTLY,
            self.recent_hours * KEPT_RECENTLY,
            (self.evidence + (_heaps_over_chance(gap) if known else 0.0)) * KEPT,
        )

    def ageing(self, age: float) -> float:
        """Return how many times the average the rate is at an age since the last failure, in mean gaps; 1 or more."""
        sure = 1 / (1 + exp(min(-self.evidence, 99.0)))
        return max(1.0, float((age / STEADY) ** (-(1 - SHAPE) * sure)))

    def per_hour(self, devices: int) -> float:
        """Return the expected failures in an hour of a run on `devices`; above 0 whatever has happened."""
        return devices * self._mean(devices)

    def lately_per_hour(self, devices: int) -> float:
        """Return a rate that the last few failures prove, 0 where they prove none: it rises within a burst."""
        sure = self.recent - DOUBT * sqrt(self.recent)
        return devices * sure / self.recent_hours if sure > 0 and self.recent_hours > 0 else 0.0

    def _mean(self, devices: int) -> float:
        """Return the posterior mean for one device: of Gammas of shape 1, each with its hours as a rate."""
        shape, prior = 1 + self.count, _prior(devices)
        nearest = prior[-1][1] + self.hours  # likelihoods are kept below 1 by those of the worst
        total = mean = 0.0
        for weight, scale in prior:
            hours = scale + self.hours
            likelihood = weight * scale / hours * (nearest / hours) ** self.count
            total += likelihood
            mean += likelihood * shape / hours
        return mean / total


@lru_cache(maxsize=16)
def _prior(devices: int) -> tuple[tuple[float, float], ...]:
    """Return Gammas of shape 1 as (weight, hours of a device), from the mildest; their mean rate is 1 / PRIOR_HOURS."""
    scales, least = [PRIOR_HOURS], WORST_HOURS * devices
    while scales[-1] > least:
        scales.append(max(scales[-1] / 10, least))
    weights = [10.0**-n for n in range(len(scales))]
    mean = sum(weight / scale for weight, scale in zip(weights, scales, strict=True)) / sum(weights)
    return tuple((weight, scale * mean * PRIOR_HOURS) for weight, scale in zip(weights, scales, strict=True))


def _heaps_over_chance(gap: float) -> float:
    """Return the log likelihood ratio of one gap, in mean gaps: Weibull of `SHAPE` over exponential; 3 at most."""
    scaled = gap * STRETCH
    return float(min(3.0, log(SHAPE * STRETCH) + (SHAPE - 1) * log(scaled) - scaled**SHAPE + gap))
