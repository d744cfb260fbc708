#pragma once
// The number of steps between saves: the configured one, or with checkpoint.interval auto the one
// that loses the least time, computed from the cost of a save and the failure rate of the job.

#include <cstdint>
#include <string>

namespace fp8train {

/// Seconds of training between two saves that lose the least time, where a save stops training for
/// `cost` seconds and the job fails every `mtbf` seconds on average: J. T. Daly, "A higher order
/// estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer
/// Systems 22 (2006), equation 37, whose first term is that of J. W. Young, "A first order
/// approximation to the optimum checkpoint interval", Communications of the ACM 17 (1974).
double best_save_seconds(double cost, double mtbf);

/// Seconds between failures of a job of `ranks` where nobody has said: 9000 hours over the ranks,
/// as on Meta's clusters of A100 GPUs (Kokolis et al., "Revisiting Reliability in Large-Scale
/// Machine Learning Research Clusters", arXiv 2410.21680).
double assumed_mtbf(int ranks);

/// Decides at which steps a run saves: at a fixed interval, or at one found from the cost of saves.
class SaveInterval {
 public:
  /// Saves never if `steps` is 0, and at an interval found from earlier saves if it is
  /// kAutomaticInterval. `mtbf` is in seconds.
  SaveInterval(int64_t steps, double mtbf) : steps_(steps), mtbf_(mtbf) {}

  /// Whether the interval is found from the cost of saves.
  bool is_automatic() const;
  /// False: no step saves at an interval.
  bool exists() const { return steps_ != 0; }

  /// The run begins, or continues, after this step. An automatic one saves soon, to know the cost.
  void begin(int64_t step);

  /// Whether the run saves after this step.
  bool is_due(int64_t step) const;

  /// The cost of a save. Times are those of the first rank, and the same on all.
  struct Cost {
    double stall_seconds = 0;  ///< in which training stopped
    double write_seconds = 0;  ///< in which no other save can begin
    double step_seconds = 0;   ///< seconds of a step, with all work between steps
  };
  /// A save of `step` is over: an automatic interval is computed anew.
  void saved(int64_t step, const Cost& cost);
  /// A save of `step` has failed: an automatic one is tried again after one interval.
  void failed(int64_t step);

  /// "a save every 831 steps ..." after the interval has changed by more than a fifth, else empty.
  std::string take_change();

 private:
  int64_t steps_;
  double mtbf_;
  int64_t found_ = 0;  ///< steps between automatic saves; 0: not known yet
  int64_t next_ = 0;   ///< step of the next automatic save
  int64_t reported_ = 0;
  Cost cost_;
};

}  // namespace fp8train
