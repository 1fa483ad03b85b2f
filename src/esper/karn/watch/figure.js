// A figure that arrives as one text: taking nested lists apart, number by number, is what costs a server its time.
export default {
  template: "<div></div>",
  props: { figure: String },
  async mounted() {
    const { Plotly } = await import("nicegui-plotly");
    this.plotly = Plotly;
    this.draw();
    this.observer = new ResizeObserver(() => this.figure && this.plotly.Plots.resize(this.$el));
    this.observer.observe(this.$el);
  },
  unmounted() {
    this.observer?.disconnect();
  },
  watch: {
    figure() {
      this.draw();
    },
  },
  methods: {
    draw() {
      if (!this.plotly || !this.figure) return;
      const { data, layout, config } = JSON.parse(this.figure);
      this.plotly.react(this.$el, data, layout, config);
    },
  },
};
